"""Saved models: another process gives the same probabilities to the bit, and nobody's data is inside."""

import csv
import dataclasses
import importlib
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from fuzz.harness import focusfl
from helpers.federations import make_ragged
from safetensors.torch import load_file
from torch import nn

import focusfl as ff
from focusfl.algorithms import ALGORITHMS
from focusfl.core.tree import flatten
from focusfl.models.describe import describe
from focusfl.run.saved.members import members
from focusfl.util import sealed
from focusfl.util.errors import CannotRun, InputError

USE = """
import sys
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file
import focusfl as ff

torch.set_num_threads(1)
root, formats = Path(sys.argv[1]), sys.argv[2].split(",")
for folder in sorted(root.glob("*/model")):
    asked = {k: v.clone() for k, v in load_file(folder.parent / "asked.safetensors").items()}
    model, found = ff.load(folder), {}
    for e in range(len(model.agents)):
        found[f"predict/{e}"] = model.predict(e, asked["x"])
    if "y" in asked:
        newcomer = model.assign(asked["x"], asked["y"])
        found["assign"] = newcomer.predict(asked["x"])
    for format in filter(None, formats):
        path = model.export(0, format, folder.parent / f"exported.{format}")
        if format == "pt2":
            with torch.no_grad(), path.open("rb") as handle:
                found[format] = torch.export.load(handle).module()(asked["x"])
        elif format == "safetensors":
            module = model.module(0)
            module.load_state_dict(load_file(path))
            with torch.no_grad():
                found[format] = module(asked["x"])
        else:
            import onnxruntime
            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            found[format] = torch.from_numpy(session.run(None, {"x": asked["x"].numpy()})[0])
    save_file({k: v.contiguous() for k, v in found.items()}, folder.parent / "found.safetensors")
"""


def methods():
    yield from ((name, kind(M=2) if name in ("fedem", "ifca") else kind()) for name, kind in ALGORITHMS.items())
    yield "focus-tied", ff.Focus(M=2, init="tied", prune=0)


def save_all(fed, root, rounds=2, only=None, **options):
    """Train every method that can run, save its model, and return the results by name."""
    from safetensors.torch import save_file

    results, x = {}, fed.test(1).x.contiguous()
    for name, method in methods():
        if only is not None and name not in only:
            continue
        try:
            result = ff.fit(method, fed, rounds=rounds, bayes="none", **options)
        except CannotRun:
            continue
        results[name] = result
        result.save(root / name / "model")
        asked = {"x": x} if name == "local" else {"x": x, "y": fed.test(1).y}
        save_file(asked, root / name / "asked.safetensors")
    return results


def use_elsewhere(root, tmp_path, formats):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, "-W", "ignore", "-c", USE, str(root), formats]
    done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def check_all(results, root, fed, formats):
    """The other process has found what this one finds, to the bit; ONNX to 1e-5."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, result in results.items():
            found, (x, y) = load_file(root / name / "found.safetensors"), fed.test(1)
            for e in range(fed.E):
                assert torch.equal(found[f"predict/{e}"], result.predict(e, x)), (name, e)
            if name != "local":
                assert torch.equal(found["assign"], result.assign(x, y).predict(x)), name
            for format in formats:
                tolerance = 1e-5 if format == "onnx" else 2e-7  # a module sums its members in one step
                assert (found[format] - result.predict(0, x)).abs().max() <= tolerance, (name, format)
    finally:
        torch.set_num_threads(threads)


def data_found_in(folder, fed):
    """The rows of the federation whose bytes are in a file of the folder."""
    models = [folder] if (folder / "model.json").exists() else folder.rglob("model")
    content = b"".join(path.read_bytes() for model in models for path in model.iterdir())
    assert len(content) > 1000
    rows = torch.cat([fed.training.x, fed.testing.x]).flatten(1).numpy()
    written = [",".join(map(str, row)) for row in rows.tolist()]
    return [i for i, row in enumerate(rows) if row.tobytes() in content or written[i].encode() in content]


@pytest.mark.slow
def test_every_method_predicts_assigns_and_exports_the_same_in_another_process(ragged, tmp_path):
    formats = ("safetensors", "pt2", "onnx")
    results = save_all(ragged, tmp_path / "saved")
    assert results.keys() == {name for name, _ in methods()}
    use_elsewhere(tmp_path / "saved", tmp_path, ",".join(formats))
    check_all(results, tmp_path / "saved", ragged, formats)
    assert data_found_in(tmp_path / "saved" / "focus" / "model", ragged) == []


def images():
    rng = np.random.default_rng(0)
    agents = [(rng.normal(size=(8, 3, 8, 8)), rng.integers(0, 2, 8)) for _ in range(3)]
    return ff.Federation.from_agents(agents, test=0.5, model=lambda: ff.models.resnet18(2, 8))


@pytest.mark.slow
def test_resnet18_predicts_the_same_in_another_process(tmp_path):
    fed = images()
    results = save_all(fed, tmp_path / "saved", rounds=1, train=ff.Train(lr=0.01, steps=1))
    assert {"focus", "fedavg", "ditto", "ifca", "fedem", "local"} <= results.keys()
    use_elsewhere(tmp_path / "saved", tmp_path, "safetensors,pt2")
    check_all(results, tmp_path / "saved", fed, ("safetensors", "pt2"))
    assert data_found_in(tmp_path / "saved", fed) == []
    path = results["focus"].model.export(1, "onnx", tmp_path / "resnet.onnx")  # checks it to 1e-5 itself
    assert path.stat().st_size > 1000


@pytest.mark.slow
def test_text_goes_in_as_text_in_another_process(tmp_path):
    words = {"good": ["a fine place", "very good", "loved it"], "bad": ["awful", "never again", "rude and cold"]}
    for e, name in enumerate(("bern", "chur", "davos")):
        (tmp_path / "reviews").mkdir(exist_ok=True)
        with (tmp_path / "reviews" / f"{name}.csv").open("w", newline="") as handle:
            rows = csv.writer(handle)
            rows.writerow(["text", "label"])
            rows.writerows((f"{text} {e} {i}", label) for label in words for text in words[label] for i in range(2))
    fed = ff.data.folder(tmp_path / "reviews")
    results = save_all(fed, tmp_path / "saved", rounds=3)
    use_elsewhere(tmp_path / "saved", tmp_path, "safetensors,pt2")
    check_all(results, tmp_path / "saved", fed, ("safetensors", "pt2"))
    assert data_found_in(tmp_path / "saved", fed) == []
    everything = b"".join(path.read_bytes() for path in (tmp_path / "saved").rglob("model/*"))
    assert b"loved it" not in everything and b"bern" in everything
    model = ff.load(tmp_path / "saved" / "focus" / "model")
    (tmp_path / "new.csv").write_text("text\nvery good\nawful\n")
    ended = focusfl("predict", tmp_path / "saved" / "focus" / "model", tmp_path / "new.csv", "--agent", "chur")
    p = model.predict("chur", ["very good", "awful"])
    assert ended.code == 0
    assert [float(row["p_bad"]) for row in csv.DictReader(ended.out.splitlines())] == pytest.approx(
        p[:, 0].tolist(), abs=1e-6
    )


@pytest.mark.slow
def test_a_fine_tuned_text_classifier_needs_no_encoder_to_load(tmp_path, monkeypatch):
    from transformers import BertConfig, BertModel

    from focusfl.models.text import TextClassifier

    def make():
        config = BertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
        )
        return TextClassifier(BertModel(config, add_pooling_layer=False), 2, "mean")

    rng = np.random.default_rng(0)
    agents = [(rng.integers(1, 50, size=(8, 6)), rng.integers(0, 2, 8)) for _ in range(2)]
    fed = ff.Federation.from_agents(agents, test=0.5, model=make, tokens=True)
    result = ff.fit(ff.FedAvg(), fed, rounds=1, train=ff.Train(lr=0.01, steps=1))
    result.save(tmp_path / "model")
    model = ff.load(tmp_path / "model")
    assert model.about.network.kind == "text-classifier"
    assert torch.equal(model.predict(0, fed.test(0).x), result.predict(0, fed.test(0).x))


# --- what is inside


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Three hospitals of two groups as csv files, a scaled federation of them, and FOCUS trained on it."""
    folder = tmp_path_factory.mktemp("hospitals") / "hospitals"
    folder.mkdir()
    for e, name in enumerate(("aarau", "bern", "elm", "flims")):
        rng = np.random.default_rng(e)
        with (folder / f"{name}.csv").open("w", newline="") as handle:
            rows = csv.writer(handle)
            rows.writerow(["age", "pressure", "diagnosis"])
            for age, pressure in zip(rng.normal(60, 10, 60), rng.normal(120, 15, 60), strict=True):
                ill = (pressure > 120) != (e >= 2)
                rows.writerow([round(age, 2), round(pressure, 2), "ill" if ill else "well"])
    fed = ff.data.folder(folder, label="diagnosis")
    result = ff.fit(ff.Focus(M=2), fed, rounds=10)
    saved = tmp_path_factory.mktemp("saved") / "model"
    result.save(saved)
    return folder, fed, result, saved


def test_columns_may_come_in_any_order_and_raw(hospitals):
    _, fed, result, saved = hospitals
    model = ff.load(saved)
    by_hand = result.setup.engine  # the engine's own evaluation is on scaled features
    scores = by_hand.evaluate(result.setup.algorithm, result.server, result.states)
    for e, name in enumerate(fed.agents):
        raw, y = fed.test(e)
        p = model.predict(name, raw)
        assert -p.gather(1, y[:, None]).log().mean() == pytest.approx(float(scores.loss[e]), abs=1e-4)
        columns = {"pressure": raw[:, 1].tolist(), "id": list(range(len(raw))), "age": raw[:, 0].tolist()}
        assert torch.allclose(model.predict(name, columns), p, atol=1e-6)
        assert torch.equal(model.predict(name, raw), result.predict(e, raw))


def test_no_row_of_the_data_is_in_the_folder_of_a_scaled_table(hospitals):
    folder, fed, _, saved = hospitals
    assert data_found_in(saved, fed) == []
    content = b"".join(path.read_bytes() for path in saved.iterdir())
    cells = [line.split(",")[:2] for path in folder.glob("*.csv") for line in path.read_text().splitlines()[1:]]
    assert cells and not any(f"{a},{b}".encode() in content for a, b in cells)
    raw = (torch.cat([fed.training.x, fed.testing.x]) * fed.deviation + fed.mean).numpy()
    assert not any(row.tobytes() in content for row in raw)


@pytest.mark.parametrize("options", [{"M": 2}, {"M": "auto"}, {"M": 2, "robust": "clip"}])
def test_no_agents_update_is_in_a_model_that_stopped_before_the_split(tmp_path, options):
    """With one row and one linear layer, an update's weights over its biases are the row."""
    rng = np.random.default_rng(0)
    agents = [(rng.normal(size=(1, 5)).astype("float32"), rng.integers(0, 2, 1)) for _ in range(6)]
    fed = ff.Federation.from_agents(agents, test=agents, model=lambda: ff.models.mlp(5, 2))
    result = ff.fit(ff.Focus(**options), fed, rounds=3, fraction=0.5, bayes="none")
    result.save(tmp_path / "model")

    def found(stored):
        rows = [part for v in stored.values() if v.numel() >= 12 for part in v.reshape(-1, v.shape[-1])]
        windows = [row[i : i + 12] for row in rows for i in range(len(row) - 11)]
        ratios = [window[:5] / window[10] for window in windows if window[10]]
        return [x for x, _ in agents if any(np.allclose(x[0], r, atol=1e-3) for r in ratios)]

    assert found(flatten(result.server))  # the run itself knows the updates
    assert found(load_file(tmp_path / "model" / "weights.safetensors")) == []
    assert not {"sketches", "senders", "counts"} & result.model.server["split"].keys()


def test_what_is_released_predicts_and_assigns_as_the_whole_state(ragged):
    x, y = ragged.test(1)
    for name, method in methods():
        result = ff.fit(method, ragged, rounds=2, model="mlp:8", bayes="none")
        whole = dataclasses.replace(result.model, server=result.server)
        for e in range(ragged.E):
            assert torch.equal(whole.predict(e, x), result.predict(e, x)), name
        if name != "local":
            assert torch.equal(whole.assign(x, y).predict(x), result.assign(x, y).predict(x)), name


def test_a_newcomer_with_labels_joins_its_group_and_keeps_its_model(hospitals, tmp_path):
    *_, saved = hospitals
    model = ff.load(saved)
    groups = model.about.results["clusters"]
    assert groups[0] == groups[1] != groups[2] == groups[3]
    rng = np.random.default_rng(9)
    x = np.stack([rng.normal(60, 10, 40), rng.normal(120, 15, 40)], 1)
    reversed_labels = ["ill" if pressure <= 120 else "well" for pressure in x[:, 1]]
    newcomer = model.assign(x, reversed_labels)
    assert int(newcomer.pi.argmax()) == groups[2] and float(newcomer.pi.max()) > 0.5
    newcomer.as_model("gams").save(tmp_path / "gams")
    assert torch.equal(ff.load(tmp_path / "gams").predict("gams", x), newcomer.predict(x))


def test_without_labels_confidence_decides_and_admits_that_it_cannot_tell():
    """Two groups see different inputs: each model knows its own half. Where both are as sure, labels are equal."""
    rng = np.random.default_rng(0)

    def agent(column, n=80):
        x = np.zeros((n, 2), "float32")
        x[:, column] = 3 * rng.normal(size=n)
        return x, (x[:, column] > 0).astype(int)

    agents = [agent(e // 2) for e in range(4)]
    fed = ff.Federation.from_agents(agents, model=lambda: ff.models.linear(2, 2))
    groups = ff.algorithms.HardCluster(M=2, clusters=(0, 0, 1, 1))
    result = ff.fit(groups, fed, rounds=20, train=ff.Train(lr=1.0, steps=5), bayes="none")
    for column in (0, 1):
        newcomer = result.assign(agent(column)[0])
        assert int(newcomer.pi.argmax()) == column and newcomer.sure > 0.95
    focus = ff.fit(ff.Focus(M=2, init="tied"), fed, rounds=1, bayes="none")
    nothing = focus.assign(np.zeros((5, 2), "float32"))  # every model says 1/2 for both classes, more or less
    assert nothing.sure == pytest.approx(0.5, abs=0.05)


def test_regression_and_local_say_why_they_cannot_assign(ragged):
    fed = ff.data.synthetic()
    with pytest.raises(InputError, match="regression has none: give labels"):
        ff.fit(ff.Focus(M=2), fed, rounds=1).assign(fed.test(0).x)
    with pytest.raises(InputError, match="Local shares no model"):
        ff.fit(ff.Local(), ragged, rounds=1).assign(*ragged.test(0))
    shared = ff.fit(ff.FedAvg(), fed, rounds=1)
    assert torch.equal(shared.assign(fed.test(0).x).predict(fed.test(0).x), shared.predict(0, fed.test(0).x))


def test_the_shares_of_the_members_are_those_of_the_method():
    w = {"a": torch.tensor([[1.0], [10.0], [100.0]])}
    focus, pi = ff.algorithms.FedEM(M=3), torch.tensor([0.25, 0.75, 0.0])
    found = members(focus, {"w": w}, {"pi": pi})
    assert torch.equal(found.weights, pi) and found.networks[2] is None
    assert [float(n["a"]) for n in found.networks[:2]] == [1.0, 10.0]


def test_a_state_dict_loads_into_a_plain_network(hospitals):
    *_, saved = hospitals
    model = ff.load(saved)
    state = model.state_dict("elm")
    k = int(state["weights"].argmax())
    kept = [m for m, share in enumerate(state["weights"].tolist()) if share].index(k)
    plain = ff.models.SkipMlp(2, 32, 2)
    prefix = f"members.{kept}."
    plain.load_state_dict({name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)})
    x = torch.tensor([[71.0, 150.0]])
    alone = plain((x - state["mean"]) / state["deviation"]).softmax(-1)
    assert torch.allclose(alone, model.module("elm").members[kept](model.inputs.scaled(x)).softmax(-1), atol=1e-6)


# --- networks and methods of the user's own


def test_an_own_network_is_built_only_if_it_is_passed_or_allowed(ragged, tmp_path, monkeypatch):
    (tmp_path / "own_network.py").write_text(
        "from torch import nn\nprint('imported')\n\n"
        "def make():\n    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    name = "own_network"
    own_network = importlib.import_module(name)

    result = ff.fit(ff.Focus(M=2), ragged, model=own_network.make, rounds=1)
    result.save(tmp_path / "model")
    monkeypatch.delitem(sys.modules, "own_network")
    with pytest.raises(InputError, match=r"\(own_network:make\): pass network=, or allow_code"):
        ff.load(tmp_path / "model")
    assert "own_network" not in sys.modules
    x = ragged.test(0).x
    for model in (
        ff.load(tmp_path / "model", network=own_network.make),
        ff.load(tmp_path / "model", allow_code=True),
    ):
        assert torch.equal(model.predict(0, x), result.predict(0, x))
    with pytest.raises(InputError, match="other layers"):
        ff.load(tmp_path / "model", network=nn.Linear(6, 3))
    assert describe(nn.Linear(2, 2), lambda: None).function == ""


def test_losses_travel_with_the_model(tmp_path):
    rng = np.random.default_rng(0)
    agents = [(rng.normal(size=(20, 3)), rng.integers(0, 2, (20, 4)).astype("float32")) for _ in range(3)]
    fed = ff.Federation.from_agents(agents, model=lambda: ff.models.mlp(3, 4))
    result = ff.fit(ff.Focus(M=2, init="tied"), fed, rounds=2)
    result.save(tmp_path / "several")
    model, x = ff.load(tmp_path / "several"), agents[0][0].astype("float32")
    assert torch.equal(model.predict(0, x), result.predict(0, x)) and model.predict(0, x).shape == (20, 4)
    assert float(model.predict(0, x).sum(1).max()) != 1.0  # sigmoids
    assert torch.equal(model.assign(*agents[0]).pi, result.assign(*agents[0]).pi)
    fed = ff.data.synthetic()
    for name, loss in (("named", "huber:delta=0.5"), ("own", nn.SmoothL1Loss(beta=2.0))):
        result = ff.fit(ff.Focus(M=2), fed, rounds=1, loss=loss)
        result.save(tmp_path / name)
        model = ff.load(tmp_path / name, loss=None if name == "named" else loss)
        assert torch.equal(model.assign(*fed.train(0)).pi, result.assign(*fed.train(0)).pi)
    with pytest.raises(InputError, match="its loss is its owner's"):
        ff.load(tmp_path / "own").assign(*fed.train(0))
    assert torch.equal(ff.load(tmp_path / "own").predict(0, fed.test(0).x), result.predict(0, fed.test(0).x))


def test_compare_keeps_a_model_per_run_unless_told_not_to(hospitals, tmp_path):
    folder, fed, *_ = hospitals
    words = ("compare", "--data", "folder", "--set", f"data.path={folder}", "--set", "data.label=diagnosis")
    words += ("--seeds", "0", "--rounds", 1, "--algorithms", "fedavg", "--out")
    assert focusfl(*words, tmp_path / "a").code == 0
    assert ff.load(tmp_path / "a/runs/fedavg-seed0/model").agents == fed.agents
    assert focusfl(*words, tmp_path / "b", "--no-models").code == 0
    assert not (tmp_path / "b/runs/fedavg-seed0/model").exists()


# --- refusals


def forged(saved, tmp_path, about=lambda a: a, tensors=lambda t: t, header=None):
    """A copy of a saved model with other content, and with digests that match it."""
    folder = shutil.copytree(saved, tmp_path / f"copy{len(list(tmp_path.iterdir()))}")
    described = about(sealed.read_json(folder / "model.json"))
    stored, old, _ = sealed.read_tensors(folder / "weights.safetensors")
    stored = tensors({name: stored[name] for name in old["names"]})
    resealed = sealed.add_digest(described)
    (folder / "model.json").write_text(json.dumps(resealed))
    digest = resealed["digest"].removeprefix("sha256:")
    new = old | {"about": digest, "names": list(stored)} | (header or {})
    sealed.write_tensors(folder / "weights.safetensors", stored, new)
    return folder


def edited(saved, tmp_path, **changes):
    """A copy of a saved model whose model.json was changed and sealed again, with weights that belong to it."""
    return forged(saved, tmp_path, lambda about: about | changes)


def refused(ended, message=""):
    """Whether a command ended with one sentence and exit code 2."""
    sound = ended.code == 2 and ended.err.startswith("error: ") and ended.err.count("\n") == 1
    return sound and not ended.faults and message in ended.err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "a newer focusfl wrote it"),
        ({"format": "other"}, "not a model of focusfl"),
        ({"method": "os:system"}, "code of its owner: pass algorithm="),
        ({"method": "nothing"}, "not one of focusfl's"),
        ({"version": 0}, "which version"),
        ({"version": True}, "which version"),
        ({"params": {"M": 2, "x": 1}}, "'x' is not an option"),
        ({"params": {"M": 1e8}}, "valid integer"),
        ({"params": {"M": "100000000"}}, "valid integer"),
        ({"params": {"M": [100_000_000]}}, "valid integer"),
        ({"params": {"M": 999_999, "prune": 0}}, "no tensor has that length"),
        ({"params": {"M": 2, "x": "\ud800"}}, "surrogates"),
        ({"params": {"M": 2, "x": json.loads("[" * 300 + "]" * 300)}}, "nested too deeply"),
        ({"train": {str(i): 0 for i in range(100_000)}}, "more than 1000 keys"),
        ({"agents": [1] * 1_000_000}, "agents.0"),
        ({"agents": ["a"] * 5_000_000}, "larger than"),
        ({"params": {"M": 10**9, "prune": 0}}, "out of range"),
        ({"network": {"kind": "mlp", "sizes": [2, 10**7, 10**7, 2]}}, "larger than its weights"),
        ({"network": {"kind": "mlp", "sizes": [3, 64, 2]}}, "do not fit the network"),
        ({"network": {"kind": "own", "function": "os:getcwd", "structure": ""}}, "pass network="),
        ({"agents": ["a", "b"]}, "agents do not fit"),
        ({"labels": ["a"]}, "1 labels for 2 classes"),
        ({"classes": 3, "labels": []}, "expected"),
        ({"surplus": 1}, "surplus"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused_in_one_sentence(hospitals, tmp_path, changes, message):
    *_, saved = hospitals
    folder = edited(saved, tmp_path, **changes)
    (tmp_path / "new.csv").write_text("age,pressure\n60,120\n")
    ended = focusfl("predict", folder, tmp_path / "new.csv", "--agent", "bern")
    assert refused(ended, message), ended.err


def without(*starts):
    return lambda tensors: {k: v for k, v in tensors.items() if not k.startswith(starts)}


def resnet(about, side):
    """A model of another kind of network, for images; its weights are not reached."""
    network = {"kind": "resnet18", "classes": 2, "width": 64, "channels": 1}
    inputs = about["inputs"] | {"kind": "arrays", "columns": [], "scaled": False, "shape": [1, side, side]}
    return about | {"network": network, "inputs": inputs}


def shaped(about, *shape):
    return about | {"inputs": about["inputs"] | {"columns": [], "kind": "arrays", "shape": list(shape)}}


def tabled(about, **changes):
    """The model with another first column of its table."""
    table = about["inputs"]["table"]
    columns = [table["columns"][0] | changes, *table["columns"][1:]]
    return about | {"inputs": about["inputs"] | {"table": table | {"columns": columns}}}


FORGED = {
    "a column of another name": ({"about": lambda a: tabled(a, name="x")}, "columns of its table"),
    "a column that is left out": ({"about": lambda a: tabled(a, kind="date")}, "columns of its table"),
    "a column of no kind": ({"about": lambda a: tabled(a, kind="x")}, "kind"),
    "a mean that is too large": ({"about": lambda a: tabled(a, mean=1e39)}, "mean"),
    "a million categories": ({"about": lambda a: tabled(a, values=["v"] * 10**6)}, "values"),
    "an example of 10^56 numbers": ({"about": lambda a: shaped(a, *[10**7] * 8)}, "more than"),
    "an example of 10^9 numbers": ({"about": lambda a: shaped(a, 10**7, 100)}, "more than"),
    "a huge image": (
        {"about": lambda a: resnet(a, 3000), "tensors": lambda t: t | {"server/more": torch.zeros(12_000_000)}},
        "too large for its network",
    ),
    "deviation 0": ({"tensors": lambda t: t | {"inputs/deviation": torch.zeros(2)}}, "not all positive"),
    "deviation -1": ({"tensors": lambda t: t | {"inputs/deviation": -torch.ones(2)}}, "not all positive"),
    "no tensors": ({"tensors": lambda t: {}}, ""),
    "a tensor that is a group": ({"tensors": lambda t: {"server/w": torch.zeros(1)} | t}, "name of a group"),
    "agents as a tensor": ({"tensors": lambda t: without("agents")(t) | {"agents": torch.zeros(4)}}, ""),
    "inputs as a tensor": ({"tensors": lambda t: without("inputs")(t) | {"inputs": torch.zeros(4)}}, ""),
    "a number as a name": ({"tensors": lambda t: t | {"1": torch.zeros(1)}, "header": {"names": [1]}}, "list of"),
    "a list as a name": ({"header": {"names": [["a"]]}}, ""),
    "float8": ({"tensors": lambda t: t | {"server/x": torch.zeros(4).to(torch.float8_e4m3fn)}}, "Float8"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_model_is_at_worst_refused(hospitals, tmp_path, case):
    changes, message = FORGED[case]
    folder = forged(hospitals[-1], tmp_path, **changes)
    (tmp_path / "new.csv").write_text("age,pressure\n60,120\n")
    for words in (
        ("predict", folder, tmp_path / "new.csv", "--agent", "bern"),
        ("assign", folder, tmp_path / "new.csv"),
    ):
        ended = focusfl(*words)
        assert refused(ended, message), ended.err


@pytest.fixture(scope="module")
def every_method(hospitals, tmp_path_factory):
    """A saved model of every method, trained on the hospitals."""
    root = tmp_path_factory.mktemp("every")
    for name, method in methods():
        ff.fit(method, hospitals[1], rounds=2, model="mlp:8", bayes="none").save(root / name)
    return root


@pytest.mark.parametrize(
    ("method", "tensor", "agent", "value"),
    [
        ("cfl", "server/k", 1, 99),
        ("hardcluster", "server/k", 2, 99),
        ("hardcluster", "server/k", 1, -1),
        ("fedma", "server/width", 0, 200_000_000),
        ("pfnm", "server/width", None, 200_000_000),
    ],
)
def test_every_agents_state_is_tried_when_a_model_is_loaded(every_method, tmp_path, method, tensor, agent, value):
    def change(tensors):
        changed = tensors[tensor].clone()
        changed[... if agent is None else agent] = value
        return tensors | {tensor: changed}

    with pytest.raises(InputError, match="copy0: "):
        ff.load(forged(every_method / method, tmp_path, tensors=change))


def test_a_servers_model_is_tried_with_a_newcomer(every_method, tmp_path):
    def as_servers(about):
        return about | {"agents": [], "results": None}

    for name, _ in methods():
        whole = forged(every_method / name, tmp_path, as_servers, without("agents/"))
        assert ff.load(whole).agents == ()
        with pytest.raises(InputError, match="copy"):
            ff.load(forged(whole, tmp_path, tensors=lambda t: {k: v for k, v in t.items() if "1.weight" not in k}))
    for name in ("fedem", "ifca", "hardcluster", "fesem", "fedsoft", "cfl"):
        with pytest.raises(InputError, match="not those of its network"):  # of one layer there is one model less
            some = {"tensors": lambda t: {k: v[:-1] if k.endswith("1.weight") else v for k, v in t.items()}}
            ff.load(forged(forged(every_method / name, tmp_path, as_servers, without("agents/")), tmp_path, **some))


def test_predictions_that_are_not_numbers_are_refused(every_method, hospitals, tmp_path):
    def huge(tensors):
        alternating = {
            k: torch.full_like(v, 3e38) * (-1.0) ** torch.arange(v.numel()).view_as(v) for k, v in tensors.items()
        }
        return tensors | {
            k: torch.cat([v[:1], alternating[k][1:2], v[2:]])
            for k, v in tensors.items()
            if k.startswith("agents/v/")
        }

    folder = forged(every_method / "ditto", tmp_path, tensors=huge)
    (tmp_path / "new.csv").write_text("age,pressure\n60,120\n")
    ended = focusfl("predict", folder, tmp_path / "new.csv", "--agent", "bern")
    assert refused(ended, "predicts NaN or infinity for row 0"), ended
    assert focusfl("predict", folder, tmp_path / "new.csv", "--agent", "aarau").code == 0  # no other agent suffers
    tiny = forged(hospitals[-1], tmp_path, tensors=lambda t: t | {"inputs/deviation": torch.full((2,), 1e-45)})
    for words in (
        ("predict", tiny, tmp_path / "new.csv", "--agent", "bern"),
        ("assign", tiny, tmp_path / "new.csv", "--no-labels"),
    ):
        assert refused(focusfl(*words), "row 0")


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors"])
def test_only_regular_files_are_read(hospitals, tmp_path, name):
    folder = shutil.copytree(hospitals[-1], tmp_path / "model")
    (folder / name).unlink()
    (folder / name).symlink_to(hospitals[-1] / name)
    assert refused(focusfl("show", folder), "regular file")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert refused(focusfl("show", folder), "regular file")


@pytest.mark.parametrize("how", ["flipped", "truncated", "missing", "of another model"])
def test_show_checks_the_weights_too(hospitals, every_method, tmp_path, how):
    folder = shutil.copytree(hospitals[-1], tmp_path / "model")
    weights = folder / "weights.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    if how == "of another model":
        content = (every_method / "fedavg" / "weights.safetensors").read_bytes()
    elif how == "flipped":
        content = content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]
    if how != "missing":
        weights.write_bytes(content[:100] if how == "truncated" else content)
    assert refused(focusfl("show", folder))


def test_names_in_a_model_control_neither_terminal_shell_nor_spreadsheet(every_method, hospitals, tmp_path):
    escape, formula = "\x1b]0;owned\x07", "=cmd|' /C calc'!A0"
    injected = f"`;touch {tmp_path}/owned;#"
    names = {"agents": [injected, f"{escape}b", "c", "d"], "labels": [formula, f"{escape}@well"], "title": escape}
    for saved in (hospitals[-1], every_method / "fedavg"):
        folder, new = edited(saved, tmp_path, **names), tmp_path / "new.csv"
        new.write_text("age,pressure\n60,100\n60,140\n")
        ends = [
            focusfl("show", folder),
            focusfl("predict", folder, new),
            focusfl("predict", folder, new, "--agent", "0"),
            focusfl("predict", folder, new, "--agent", "1", "--out", tmp_path / "out.csv", "--overwrite"),
            focusfl("assign", folder, new),
            focusfl("export", folder, tmp_path / "o.safetensors", "--agent", "1", "--overwrite"),
        ]
        assert [ended.code for ended in ends] == [0, 2, 0, 0, 0, 0], ends
        assert not any("\x1b" in ended.out + ended.err for ended in ends)
        cells = [cell for row in csv.reader((tmp_path / "out.csv").read_text().splitlines()) for cell in row]
        assert not any(cell.startswith(("=", "@", "\x1b")) for cell in cells)
        command = next(line for line in ends[0].out.splitlines() if line.startswith("focusfl predict"))
        subprocess.run(["sh", "-c", command.replace("focusfl", "true", 1)], check=True)
        assert not (tmp_path / "owned").exists()


def text_model(**config):
    from transformers import BertConfig, BertModel

    from focusfl.models.text import TextClassifier

    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = BertConfig(**sizes, intermediate_size=32, **config)
    return TextClassifier(BertModel(made, add_pooling_layer=False), 2, "mean")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A saved text classifier with a vocabulary of 50 tokens."""
    rng = np.random.default_rng(0)
    agents = [(rng.integers(1, 50, size=(8, 6)), rng.integers(0, 2, 8)) for _ in range(2)]
    fed = ff.Federation.from_agents(agents, test=0.5, model=text_model, tokens=True)
    return ff.fit(ff.FedAvg(), fed, rounds=1, train=ff.Train(lr=0.01, steps=1)).save(
        tmp_path_factory.mktemp("text") / "model"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        {"_attn_implementation": "kernels-community/flash-attn"},
        {"auto_map": {"AutoModel": "somebody/code"}},
        {"num_labels": 10**9},
        {"num_hidden_layers": 10**9},
        {"max_position_embeddings": 10**9},
        {"hidden_size": "x"},
        {"hidden_size": 0},
        {"hidden_act": "x"},
        {"pad_token_id": None},
        {"pad_token_id": 99},
        {"model_type": "clip"},
        {"is_decoder": True},
    ],
    ids=lambda config: next(iter(config)),
)
def test_a_strangers_encoder_is_built_only_from_known_values(text, tmp_path, config):
    def change(about):
        return about | {"network": about["network"] | {"encoder": about["network"]["encoder"] | config}}

    np.savez(tmp_path / "new.npz", x=np.ones((2, 6), dtype=np.int64))
    ended = focusfl("predict", forged(text, tmp_path, change), tmp_path / "new.npz", "--agent", "0")
    assert refused(ended), ended


@pytest.mark.slow
def test_encoders_like_bert_are_described_so_that_they_load_by_themselves():
    from transformers import AutoConfig, AutoModel

    from focusfl.models.text import TextClassifier

    assert describe(ff.models.text_classifier()).kind == "text-classifier"  # the packaged MiniLM
    sizes = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    for kind in ("roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "albert", "electra"):
        small = {"vocab_size": 60, "dim": 16, "n_layers": 1, "n_heads": 2} if kind == "distilbert" else sizes
        encoder = AutoModel.from_config(AutoConfig.for_model(kind, **small))
        encoder.pooler = None
        assert describe(TextClassifier(encoder, 2, "cls")).kind == "text-classifier", kind


@pytest.mark.slow
def test_a_text_classifier_with_few_tokens_is_exported_and_refuses_others(text, tmp_path):
    model = ff.load(text)
    assert model.export(0, "safetensors", tmp_path / "text.safetensors").exists()
    with pytest.raises(InputError, match="do not fit the model"):
        model.predict(0, np.full((1, 6), 50))
    assert describe(text_model(is_decoder=True)).kind == "own"  # what a description cannot say is not guessed


def test_weights_of_another_model_are_refused(hospitals, tmp_path):
    *_, result, saved = hospitals
    folder = shutil.copytree(saved, tmp_path / "model")
    result.save(tmp_path / "other")
    about = sealed.read_json(tmp_path / "other" / "model.json") | {"data": "others"}
    sealed.write_json(folder / "model.json", about)
    with pytest.raises(InputError, match="belong to different models"):
        ff.load(folder)
    with pytest.raises(InputError, match="no model here"):
        ff.load(tmp_path)
    with pytest.raises(InputError, match="holds something that is not a model"):
        result.save(tmp_path)


def test_a_folder_in_which_saving_was_cut_off_can_be_saved_to_again_and_no_other(hospitals, tmp_path):
    *_, result, saved = hospitals
    whole = {path.name: path.read_bytes() for path in saved.iterdir()}
    for left in (["weights.safetensors"], ["weights.safetensors", "README.md"], [".model.json.7.tmp"]):
        folder = tmp_path / f"cut-{len(left)}-{left[0]}"
        folder.mkdir()
        for name in left:
            (folder / name).write_bytes(whole.get(name, b"half"))
        result.save(folder)
        written = {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}
        assert written == whole  # to the byte: the same run saves the same model
    for name, content in (("README.md", b"mine"), ("weights.safetensors", b"mine"), ("notes.txt", b"")):
        folder = tmp_path / f"mine-{name}"
        folder.mkdir()
        (folder / name).write_bytes(content)
        with pytest.raises(InputError, match="holds something that is not a model"):
            result.save(folder)
        assert (folder / name).read_bytes() == content


def test_the_command_line_says_what_is_missing(hospitals, tmp_path):
    *_, saved = hospitals
    new = tmp_path / "new.csv"
    for content, words, message in (
        ("age\n1\n", ("--agent", "bern"), "no column pressure"),
        ("age,pressure\n1,x\n", ("--agent", "bern"), "row 2 (counting the header), column 'pressure': 'x' is not"),
        ("age,pressure\n1,inf\n", ("--agent", "bern"), "empty, NaN or infinite"),
        ("age,pressure\n1,2\n", (), "--agent is missing: whose model? Known: aarau, bern, elm, flims"),
        ("age,pressure\n1,2\n", ("--agent", "bren"), "did you mean 'bern'"),
        ("age,pressure\n", ("--agent", "bern"), "no examples"),
    ):
        new.write_text(content)
        ended = focusfl("predict", saved, new, *words)
        assert ended.code == 2 and message in ended.err and ended.faults == [], ended.err


def test_predictions_are_written_with_names_probabilities_and_other_columns(hospitals, tmp_path):
    *_, saved = hospitals
    new, out = tmp_path / "new.csv", tmp_path / "deep" / "predictions.csv"
    new.write_text("id,pressure,age\n7,150,71\n8,100,55\n")
    assert focusfl("predict", saved, new, "--agent", "bern", "--out", out).code == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["id"] for row in rows] == ["7", "8"] and [row["prediction"] for row in rows] == ["ill", "well"]
    assert all(float(row["p_ill"]) + float(row["p_well"]) == pytest.approx(1, abs=2e-6) for row in rows)
    again = focusfl("predict", saved, new, "--agent", "bern", "--out", out)
    assert again.code == 2 and "--overwrite" in again.err


def test_the_card_says_for_whom_not_to_use_it(hospitals):
    *_, saved = hospitals
    ended = focusfl("show", saved)
    assert ended.code == 0 and ended.out == (saved / "README.md").read_text()
    for words in ("# FOCUS on hospitals", "ill, well", "FAA", "95 % interval", "For whom not to use it", "bern"):
        assert words in ended.out
    assert make_ragged().name not in ended.out
