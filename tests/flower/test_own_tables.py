"""Raw tables at the nodes: a deployment gives the numbers of one process that has all files.

The real app, called in this process (helpers/hall.py has the grid without it).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.algorithms import adapt as adapting
from focusfl.core.tree import flatten
from focusfl.data.own.description import Reading
from focusfl.data.own.folder import folder
from focusfl.data.own.node import read_own_data
from focusfl.run.loop import Round, run
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError

if not os.environ.get("CI"):
    pytest.importorskip("flwr")

import flwr.app.message.message as flower_message
from flwr.app import Array, Context, Error, Message, RecordDict
from helpers.hall import FakeIdentity
from helpers.own_data import described
from helpers.raw_tables import write_site
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from focusfl.flower import serve
from focusfl.flower.apps.configured import RunConfig, app
from focusfl.flower.protocol.description import from_text, to_text
from focusfl.flower.protocol.exchange import TooFewReplies
from focusfl.flower.protocol.names import Unreadable, cells_for, read_names, table_of
from focusfl.flower.protocol.wire import Refused
from focusfl.flower.secure_sums import fixed_point
from focusfl.flower.secure_sums.exact import from_digits, to_digits

DEFAULTS: dict[str, Any] = {"algorithm": "focus", "focus.M": 2, "rounds": 3, "wait": 0.0, "best": "none"}
DEFAULTS |= {"label": "outcome"}  # all else is left at the defaults of own data
TRAIN = {"train.lr": 0.01, "train.steps": 3, "train.batch": 16, "train.optimiser": "sgd"}
QUICK = DEFAULTS | TRAIN | {"focus.adapt": False, "validation": 0.0, "patience": 0}


@pytest.fixture(autouse=True)
def sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_message, "TaskIdentity", FakeIdentity)


class Machines:
    """Flower's Grid, with a node for each of these files in this process."""

    def __init__(
        self, config: dict[str, Any], *places: Path, run_id: int = 1, base: dict[str, Any] = QUICK
    ) -> None:
        self.config = base | {"agents": len(places)} | config
        self.nodes = {
            100 + e: Context(run_id, 100 + e, {"agent": e, "data": str(place)}, RecordDict(), self.config)
            for e, place in enumerate(places)
        }
        self.change: Callable[[int, Message], None] = lambda *_: None
        self.said: list[str] = []
        self.replies: list[Message] = []
        self.kinds: set[str] = set()  # of the messages that were sent
        self.count = 0

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            self.count += 1
            self.kinds.add(message.metadata.message_type)
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = str(self.count)
            try:
                reply = app(message, self.nodes[node])
            except Exception as error:  # as Flower does
                reply = Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
            self.change(node - 100, reply)
            replies.append(reply)
        self.replies += replies
        return replies

    def serve(self) -> dict[str, Any]:
        return serve(self, RunConfig(self.config).deployment(), self.said.append)  # type: ignore[arg-type,return-value]


def sites(root: Path, regression: bool = False, nodes: int = 3) -> list[Path]:
    root.mkdir()
    places = [root / f"{e}.csv" for e in range(nodes)]
    for e, place in enumerate(places):
        write_site(place, e, 50 + 20 * e, regression)
    return places


def in_one_process(
    root: Path, rounds: int = 3, defaults: bool = False, adapt: bool | None = False, **options: Any
) -> Round:
    """Train on the folder with the nodes' files: the same names, split and seed."""
    fed = folder(root, label="outcome", **options)
    train = ff.Train(lr=0.01, steps=3, batch=16, optimiser="sgd")
    quick: dict[str, Any] = {} if defaults else {"validation": 0, "patience": 0}
    fed = fed if defaults else replace(fed, recipe=replace(fed.recipe, train=train))  # as keys of a run do
    *_, last = run(Setup.of(ff.Focus(M=2, adapt=adapt), fed, rounds, engine="serial", bayes="none", **quick))
    return last


def same(row: dict[str, Any], last: Round) -> None:
    """Check that every agent's loss is that of a run in one process, to the last bit."""
    assert last.scores is not None
    assert row["loss"] == last.scores.loss.tolist()


def told(out: Path, name: str = "focus") -> dict[str, Any]:
    """Return the description that the nodes of a run were told."""
    text = json.loads((out / f"runs/{name}-seed0/description.json").read_text())["description"]
    return dict(json.loads(text))


@pytest.mark.parametrize("regression", [False, True], ids=["classes", "regression"])
def test_a_deployment_on_raw_tables_gives_the_numbers_of_one_process(tmp_path: Path, regression: bool) -> None:
    """Nothing is set but the label: kinds, categories, classes, missing cells, scales and network are found."""
    hall = Machines({"out": str(tmp_path / "out")}, *sites(tmp_path / "sites", regression))
    row, last = hall.serve(), in_one_process(tmp_path / "sites")
    same(row, last)
    stored = load_file(tmp_path / "out/runs/focus-seed0/checkpoint.safetensors")
    for name, tensor in flatten({"server": last.server}).items():
        assert torch.equal(stored[name], tensor), name
    fed = folder(tmp_path / "sites", label="outcome", scale=True)
    model = ff.load(tmp_path / "out/runs/focus-seed0/model")
    assert model.inputs.schema == fed.inputs.schema and model.inputs.columns == fed.columns
    assert torch.equal(model.inputs.mean, fed.mean) and torch.equal(model.inputs.deviation, fed.deviation)
    assert model.labels == fed.labels == (() if regression else ("ill", "well"))
    assert list(row["metrics"]) == (
        ["rmse", "r2", "skill"] if regression else ["auc", "balanced-accuracy", "skill"]
    )
    assert all(len(values) == 3 for values in row["metrics"].values())
    assert any("categories: ward (6), sex (2)" in line for line in hall.said)
    assert any("patient_id (identifier), seen (date), country (one value)" in line for line in hall.said)


@pytest.mark.parametrize("regression", [False, True], ids=["classes", "regression"])
@pytest.mark.parametrize("adapt", [False, True], ids=["shared", "adapted"])
def test_a_deployment_with_no_option_set_gives_the_numbers_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regression: bool, adapt: bool
) -> None:
    """Scaling, validation data, learning rate, early stopping and adaptation are left at their defaults.

    Without adaptation the numbers are the same to the last bit. It trains for many steps more, which turn a
    difference in the last bit into one of a percent; here it takes few.
    """
    paths = (adapting.Path(kind, (16,), examples=1) for kind in ("intercept", "weights", "alone"))
    monkeypatch.setattr(adapting, "PATHS", tuple(paths))
    config = {"rounds": 2} | ({} if adapt else {"focus.adapt": False})
    row = Machines(config, *sites(tmp_path / "sites", regression), base=DEFAULTS).serve()
    last = in_one_process(tmp_path / "sites", rounds=2, defaults=True, adapt=None if adapt else False)
    assert last.scores is not None
    if adapt:
        assert row["loss"] == pytest.approx(last.scores.loss.tolist(), rel=1e-5)
    else:
        same(row, last)


@pytest.mark.parametrize(
    "options",
    [
        {"scale": False},
        {"drop": ("dose", "tiny"), "categorical": ("age",)},
        {"target": "class", "drop": ("dose",)},
    ],
    ids=str,
)
def test_options_of_tables_are_those_of_a_folder(tmp_path: Path, options: dict[str, Any]) -> None:
    places = sites(tmp_path / "sites")
    config = {f"data.{k}": ",".join(v) if isinstance(v, tuple) else v for k, v in options.items()}
    same(Machines(config | {"rounds": 1}, *places).serve(), in_one_process(tmp_path / "sites", rounds=1, **options))


def test_an_option_of_tables_is_the_same_by_its_name_on_one_machine() -> None:
    """Whatever the order in which Flower brings the keys: the app lists all of them with their defaults."""
    for keys in (("data.scale", "scale"), ("scale", "data.scale")):
        values: dict[str, Any] = {"data.scale": False, "scale": "auto"}
        reading = RunConfig(QUICK | {"agents": 3} | {key: values[key] for key in keys}).reading
        assert reading is not None and reading.scale is False
    with pytest.raises(InputError, match="scale"):
        RunConfig(QUICK | {"agents": 3, "scale": "yes"}).deployment()


def test_missing_cells_are_refused_if_that_is_asked_and_the_rest_goes_on(tmp_path: Path) -> None:
    places = sites(tmp_path / "sites", nodes=4)
    for e in (0, 2, 3):
        write_site(places[e], e, 60, age=[50 + i for i in range(60)], ward=["A", "B"] * 30)
    hall = Machines({"missing": "refuse", "rounds": 1}, *places)
    assert hall.serve()["agents"] == [0, 2, 3]
    assert any("agent 1" in line and "own log" in line for line in hall.said)


def test_a_number_that_is_the_same_in_all_training_data_is_left_out(tmp_path: Path) -> None:
    """Not one that differs between nodes only."""
    places = sites(tmp_path / "sites")
    for e, place in enumerate(places):
        write_site(place, e, 60, version=[0.1] * 60, site=[e] * 60)
    row = Machines({"rounds": 1, "out": str(tmp_path / "out")}, *places).serve()
    same(row, in_one_process(tmp_path / "sites", 1))
    columns = {c["name"]: c["kind"] for c in told(tmp_path / "out")["inputs"]["table"]["columns"]}
    assert columns["version"] == "constant" and columns["site"] == "number"


def test_columns_in_any_order_are_those_of_the_first_agent(tmp_path: Path) -> None:
    places = sites(tmp_path / "sites")
    rows = [line.split(",") for line in places[2].read_text().splitlines()]
    places[2].write_text("\n".join(",".join(row[::-1]) for row in rows) + "\n")
    same(Machines({"rounds": 1}, *places).serve(), in_one_process(tmp_path / "sites", rounds=1))


def test_targets_and_features_of_arrays_are_found_too(tmp_path: Path) -> None:
    """npz files have no columns; in regression their targets are scaled, and with scale = true their features."""
    (tmp_path / "sites").mkdir()
    places = [tmp_path / f"sites/{e}.npz" for e in range(3)]
    for e, place in enumerate(places):
        x = np.random.default_rng(e).normal(0.3, 0.5, (40, 2, 3)).astype("float32")
        np.savez(place, x=x, y=x.sum((1, 2)) * 1e3 + 1e6)
    for scale in (False, True):
        row = Machines({"rounds": 1, "scale": scale}, *places).serve()
        same(row, in_one_process(tmp_path / "sites", rounds=1, scale=scale))


def test_secure_sums_give_the_same_description_to_the_last_bit(tmp_path: Path) -> None:
    places = sites(tmp_path / "sites", regression=True)
    tied = {"focus.init": "tied", "rounds": 1, "validation": 0.2}
    plain = Machines(tied | {"out": str(tmp_path / "plain")}, *places)
    secure = Machines(tied | {"out": str(tmp_path / "secure"), "secure": True, "minimum": 3}, *places, run_id=2)
    one, other = plain.serve(), secure.serve()
    assert told(tmp_path / "plain") == told(tmp_path / "secure")
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    assert not any("sums" in reply.content for reply in secure.replies if not reply.has_error())


def test_a_resumed_run_is_told_the_same_and_nobody_counts_again(tmp_path: Path) -> None:
    places, out = sites(tmp_path / "sites"), {"out": str(tmp_path / "out")}
    first = Machines(out, *places).serve()
    write_site(places[1], 9, 70)  # another table
    again = Machines(out | {"resume": True}, *places, run_id=2)
    again.serve()
    assert "query.describe" not in again.kinds and first["loss"]
    path = tmp_path / "out/runs/focus-seed0/description.json"
    path.write_text(path.read_text().replace("ward", "wart"))
    with pytest.raises(InputError, match=r"description\.json"):
        Machines(out | {"resume": True}, *places).serve()


def test_a_node_that_comes_later_encodes_as_the_others(tmp_path: Path) -> None:
    """Agent 2 connects after the data were described: it is told how to encode, and what is new to all is 0."""
    places = sites(tmp_path / "sites")
    hall = Machines({"minimum": 2, "out": str(tmp_path / "out")}, *places)
    late = hall.nodes.pop(102)
    hall.change = lambda *_: hall.nodes.update({102: late}) if "train" in hall.kinds else None
    assert hall.serve()["agents"] == [0, 1, 2]
    values = next(c for c in told(tmp_path / "out")["inputs"]["table"]["columns"] if c["name"] == "ward")["values"]
    assert "only at 1" in values and "only at 2" not in values


# --- what leaves a node


def raw_bytes(replies: list[Message]) -> bytes:
    """Return all that nodes sent."""
    sound = [r.content for r in replies if not r.has_error()]
    arrays = [a.data for content in sound for record in content.array_records.values() for a in record.values()]
    return b"".join(arrays) + repr([r.error.reason for r in replies if r.has_error()] + sound).encode()


def values_told(replies: list[Message]) -> set[str]:
    """Return the values that single nodes told, read from the numbers that they sent."""
    sums = [r.content.array_records["sums"] for r in replies if not r.has_error() and "sums" in r.content]
    found = [read_names(record["names"].numpy(), 1) for record in sums if "names" in record]
    return {value for names in found for values in names.values() for value in values}


def test_a_word_among_numbers_stays_at_its_node_and_the_others_count_without_it(tmp_path: Path) -> None:
    places = sites(tmp_path / "sites", nodes=4)
    write_site(places[3], 3, 60, age=[*range(59), "Jane Doe"])
    hall = Machines({"out": str(tmp_path / "out"), "minimum": 2}, *places)
    assert hall.serve()["agents"] == [0, 1, 2]
    assert any("left out: agent 3" in line and "own log" in line for line in hall.said)
    assert b"Jane" not in raw_bytes(hall.replies)
    three = Machines({"out": str(tmp_path / "three")}, *places[:3], run_id=2)
    three.serve()
    assert told(tmp_path / "out") == told(tmp_path / "three")


def test_what_looks_like_names_of_persons_does_not_travel(tmp_path: Path) -> None:
    """Category values do, as the page says; names, remarks and dates do not, nor does anything of a row."""
    places = sites(tmp_path / "sites")
    for e, place in enumerate(places):
        people: list[object] = [f"Jane Doe {e}{i}" for i in range(60)]
        write_site(place, e, 60, contact=people, remark=[f"felt {v}" for v in people])
    hall = Machines({"rounds": 1, "out": str(tmp_path / "out")}, *places)
    same(hall.serve(), in_one_process(tmp_path / "sites", rounds=1))
    sent, wards = raw_bytes(hall.replies), {"A", "B", "C é", "only at 0", "only at 1", "only at 2"}
    assert values_told(hall.replies) == wards | {"f", "m", "ill", "well", "CH"}  # categories, classes, a constant
    assert b"Jane" not in sent and b"felt" not in sent and b"2024" not in sent
    own = read_own_data(places[0], "0", Reading(label="outcome"))
    with pytest.raises(InputError, match="looks like names"):
        own.names(own.form.columns, [own.form.columns.index("contact")])  # a server that lies asks for them


def test_a_node_for_secure_runs_only_does_not_count_in_the_open(tmp_path: Path) -> None:
    hall = Machines({}, *sites(tmp_path / "sites"))
    for context in hall.nodes.values():
        context.node_config["secure"] = True
    with pytest.raises(TooFewReplies):
        hall.serve()
    assert hall.kinds == {"query.enroll"} and all(reply.has_error() for reply in hall.replies)


# --- nodes that lie


def lie(name: str, value: Any) -> Callable[[int, Message], None]:
    """Let agent 1 change one of its arrays."""

    def change(e: int, reply: Message) -> None:
        if e == 1 and not reply.has_error() and "sums" in reply.content:
            record = reply.content.array_records["sums"]
            if name in record:
                wrong = np.array(record[name].numpy())
                wrong = value(wrong) if callable(value) else np.full_like(wrong, value)
                record[name] = Array(wrong)

    return change


@pytest.mark.parametrize(
    "name, value",
    [
        ("total", np.nan),
        ("total", 1e300),
        ("known", 1e9),
        ("columns", -1.0),
        ("columns", 0.5),
        ("columns", 1e6),
        ("seen", 2.0),
        ("n", 1e6),
        ("labels", 0.0),
        ("squares", -1.0),
        ("names", 1.0),
        ("names", lambda v: v[:-1]),
        ("known", lambda v: v.astype("float32")),
    ],
    ids=lambda v: "another shape" if callable(v) else str(v),
)
def test_sums_that_are_not_possible_are_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    """The others go on as if that node had not answered."""
    places = sites(tmp_path / "sites")
    hall = Machines({"rounds": 1, "out": str(tmp_path / "out"), "minimum": 2}, *places)
    hall.change = lie(name, value)
    hall.serve()
    assert any("left out: agent 1" in line for line in hall.said)
    honest = Machines({"rounds": 1, "out": str(tmp_path / "two"), "minimum": 2}, *places)
    del honest.nodes[101]
    honest.serve()
    assert told(tmp_path / "out") == told(tmp_path / "two")


def test_labels_of_most_nodes_decide_whether_they_are_words(tmp_path: Path) -> None:
    places = sites(tmp_path / "sites")
    write_site(places[0], 0, 60, outcome=[0, 1] * 30)
    hall = Machines({"rounds": 1, "minimum": 2}, *places)
    assert hall.serve()["agents"] == [1, 2]
    assert any("agent 0" in line and "words" in line for line in hall.said)


def test_with_too_few_nodes_there_is_no_description(tmp_path: Path) -> None:
    hall = Machines({}, *sites(tmp_path / "sites"))
    hall.change = lambda e, reply: reply.content.clear() if e and not reply.has_error() else None
    with pytest.raises(TooFewReplies):
        hall.serve()


# --- sums that are exact


def test_scales_and_offsets_of_any_size_are_those_of_numpy(tmp_path: Path) -> None:
    """Deviations from 1e-3 to 1e3 at offsets up to 1e6 times as large, computed by numpy on all rows at once."""
    rng, nodes, raw = np.random.default_rng(0), [], []
    for e in range(3):
        x = np.stack([rng.normal(o * s, s, 40 + e) for s in (1e-3, 1.0, 1e3) for o in (0, 1, 1e3, 1e6)], 1)
        x = x.astype("float32")
        np.savez(tmp_path / f"{e}.npz", x_train=x, y_train=[0, 1] * 20 + [1] * e, x_test=x[:2], y_test=[0, 1])
        nodes.append(read_own_data(tmp_path / f"{e}.npz", str(e), Reading(scale=True)))
        raw.append(x.astype(float))
    inputs, every = described(*nodes).inputs, np.concatenate(raw)
    assert inputs.mean is not None and inputs.deviation is not None
    np.testing.assert_allclose(inputs.mean.numpy(), every.mean(0), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(inputs.deviation.numpy(), every.std(0), rtol=1e-6)


@given(st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=3, max_size=3)))
def test_digits_of_doubles_add_up_exactly(terms: list[list[float]]) -> None:
    """Against math.fsum, which is exact too."""
    squares = [[v * v for v in row] for row in [*terms, [0.1, -2.5, 1e-30]]]
    total = from_digits(sum(to_digits(np.array(row)) for row in squares))
    assert total.tolist() == [math.fsum(column) for column in zip(*squares, strict=True)]


def test_digits_fit_a_secure_sum_and_hide_what_would_be_carried() -> None:
    digits = np.stack([to_digits(np.array([1.0]))[0] for _ in range(400)])
    assert np.abs(digits).max() <= fixed_point.MAX_VALUE
    assert (digits.std(0)[:-1] > 1e5).all()  # 1024 times a uniform number from -512 to 511: 1024 * 1024 / 12^0.5
    for wrong in (np.inf, np.nan, 2.0**401):
        with pytest.raises(InputError):
            to_digits(np.array([wrong]))


@settings(max_examples=30)
@given(st.lists(st.sets(st.tuples(st.integers(0, 30), st.text(max_size=20))), min_size=1, max_size=4))
def test_the_union_of_names_is_read_from_the_sum_of_the_tables(nodes: list[set[tuple[int, str]]]) -> None:
    union = set().union(*nodes)
    cells = cells_for([len(union)], attempt=1)
    found = read_names(sum(table_of(names, cells) for names in nodes), len(nodes))
    assert {(j, value) for j, values in found.items() for value in values} == union


def test_names_that_do_not_fit_are_not_made_up() -> None:
    with pytest.raises(Unreadable):
        read_names(table_of([(0, f"value {i}") for i in range(200)], 16), 1)


# --- descriptions from a stranger


def damaged(value: Any, rng: np.random.Generator) -> Any:
    """Return a value of JSON with one thing changed somewhere."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        places = list(value) if isinstance(value, dict) else range(len(value))
        place = places[int(rng.integers(len(places)))]
        copy = value.copy()
        if rng.random() < 0.1:
            del copy[place]
        else:
            copy[place] = damaged(value[place], rng)
        return copy
    strange: list[Any] = [None, -1, 1.5, 10**30, "nan", [], {}, True, "x" * 99, [[1]], 0]
    return strange[int(rng.integers(len(strange)))]


def test_a_damaged_description_is_refused_in_one_line_or_is_one(tmp_path: Path) -> None:
    places = sites(tmp_path / "sites", regression=True)
    nodes = [read_own_data(place, str(e), Reading(label="outcome")) for e, place in enumerate(places)]
    sound, refused = json.loads(to_text(described(*nodes))), 0
    assert from_text(json.dumps(sound)).inputs.schema == described(*nodes).inputs.schema
    for seed in range(300):
        text = json.dumps(damaged(sound, np.random.default_rng(seed)))
        try:
            description = from_text(text)
        except Refused as why:
            refused += 1
            assert "\n" not in str(why)
        else:
            with suppress(InputError):
                nodes[0].data(description)
    assert refused > 100
