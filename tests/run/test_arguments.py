"""What a person may get wrong in Python is said in one sentence; what they may leave out has a default."""

import warnings

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.util.errors import InputError

SYNTHETIC = ff.data.synthetic(seed=0, n=20)


def two_agents(classes=2):
    rng = np.random.default_rng(0)
    y = [rng.integers(0, classes, 40) if classes else rng.normal(size=40) for _ in range(2)]
    return [(rng.normal(size=(40, 3)), each) for each in y]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ff.fit(ff.Focus, SYNTHETIC, rounds=1), ["algorithm", "the class Focus", "Focus()"]),
        (lambda: ff.fit(SYNTHETIC, ff.Focus(M=2), rounds=1), ["algorithm", "Federation"]),
        (lambda: ff.fit("focus", SYNTHETIC, rounds=1), ["algorithm", "str"]),
        (lambda: ff.fit(ff.FedAvg(), two_agents(), rounds=1), ["fed", "from_agents", "list"]),
        (lambda: ff.fit(ff.FedAvg(), SYNTHETIC, settings={"rounds": 1}), ["settings", "ff.Settings", "dict"]),
        (lambda: ff.fit(ff.FedAvg(), SYNTHETIC, rounds=1, train={"lr": 0.1}), ["train", "ff.Train", "dict"]),
        (lambda: ff.fit(ff.FedAvg(), SYNTHETIC, rounds="10"), ["rounds = '10'", "whole number"]),
        (lambda: ff.fit(ff.FedAvg(), SYNTHETIC, rounds=1, fraction="0.5"), ["fraction = '0.5'"]),
        (lambda: ff.fit(ff.FedAvg(), SYNTHETIC, rounds=1, validation="0.2"), ["validation = '0.2'"]),
        (lambda: ff.fit(ff.FedAvg(), SYNTHETIC, rounds=1, metrics=3), ["metrics", "names"]),
        (lambda: ff.fit(ff.FedAvg(), SYNTHETIC, rounds=1, model=5), ["model = 5", "torch.nn.Module"]),
        (lambda: ff.fit(ff.FedAvg(), SYNTHETIC, rounds=1, model=torch.nn.Linear), ["model", "in_features"]),
        (lambda: ff.Train(lr="0.1"), ["lr = '0.1'", "positive number"]),
        (lambda: ff.Train(steps=1.5), ["steps = 1.5", "whole number"]),
        (lambda: ff.Train(batch="8"), ["batch = '8'", "whole number"]),
        (lambda: ff.Train(epochs=True), ["epochs = True", "whole number"]),
        (lambda: ff.Ditto(lam="1"), ["ditto.lam = '1'", "0 or more"]),
        (lambda: ff.QFFL(q=None), ["qffl.q = None"]),
        (lambda: ff.data.synthetic(seed="0"), ["data.seed = '0'"]),
        (lambda: ff.load(5), ["path", "int"]),
        (lambda: ff.compare(ff.Focus(), SYNTHETIC), ["algorithms", "list"]),
        (lambda: ff.compare([], SYNTHETIC), ["algorithms", "list"]),
        (lambda: ff.compare([ff.FedAvg()], SYNTHETIC, seeds=[1, 1]), ["seeds = [1, 1]"]),
        (lambda: ff.compare([ff.FedAvg()], SYNTHETIC, seeds=0), ["seeds = 0", "[0]"]),
        (lambda: ff.compare([ff.FedAvg()], SYNTHETIC, seeds="0"), ["seeds = '0'", "list"]),
        (lambda: ff.fit(ff.FedAvg(weight_by_n="yes"), SYNTHETIC, rounds=1), ["weight_by_n = 'yes'", "True"]),
        (lambda: ff.data.folder("x", test="x"), ["data.test = 'x'", "share"]),
        (lambda: ff.data.folder("x", seed="a"), ["data.seed = 'a'", "whole number"]),
        (lambda: ff.data.folder("x", hidden="a"), ["data.hidden = 'a'"]),
        (lambda: ff.data.folder("x", max_mb="a"), ["data.max_mb = 'a'"]),
        (lambda: ff.data.folder("x", label=3), ["data.label", "int"]),
        (lambda: ff.data.folder("x", drop=3), ["data.drop", "int"]),
        (lambda: ff.data.folder("x", categorical=[3]), ["data.categorical", "int"]),
        (lambda: ff.data.folder(None), ["path", "folder", "NoneType"]),
        (lambda: ff.data.folder(5), ["path", "int"]),
        (lambda: ff.data.folder({}), ["path", "dict"]),
        (lambda: ff.Federation.from_agents(None), ["agents", "list", "NoneType"]),
        (lambda: ff.Federation.from_agents(3), ["agents", "list", "int"]),
        (lambda: ff.Federation.from_agents(dict(enumerate(two_agents()))), ["agents", "list", "dict", "names"]),
        (lambda: ff.Federation.from_agents([{"x": [[1.0]], "y": [0]}] * 2), ["agent 0", "pair", "dict"]),
        (lambda: ff.Federation.from_agents(two_agents(), test="x"), ["test", "list", "str"]),
        (lambda: ff.Federation.from_agents(two_agents(), test=None), ["test", "list", "NoneType"]),
        (lambda: ff.Federation.from_agents(two_agents(), validation=3), ["validation", "list", "int"]),
        (lambda: ff.Federation.from_agents(two_agents(), seed="a"), ["seed = 'a'"]),
        (lambda: ff.compare([ff.FedAvg()], SYNTHETIC, seed=1), ["seed", "seeds=[1]"]),
        (lambda: ff.compare([ff.FedAvg()], SYNTHETIC, out="x"), ["out"]),
        (lambda: ff.compare([ff.FedAvg(), ff.FedAvg()], SYNTHETIC, seeds=[0], rounds=1), ["fedavg", "once"]),
    ],
)
def test_wrong_arguments_are_named(call, words):
    with pytest.raises(InputError) as refused:
        call()
    assert all(word in str(refused.value) for word in words), refused.value


def test_numbers_of_numpy_are_numbers():
    train = ff.Train(lr=np.float64(0.1), steps=np.int64(3))
    assert train.steps == 3 and type(train.steps) is int
    assert ff.fit(ff.FedAvg(), SYNTHETIC, rounds=np.int32(1), train=train).rounds == 1


@pytest.mark.parametrize(
    ("classes", "layers"), [(2, [(2, 3), (32, 3), (2, 32)]), (None, [(1, 3), (32, 3), (1, 32)])]
)
def test_arrays_have_a_default_model_as_folders_have(classes, layers):
    fed = ff.Federation.from_agents(two_agents(classes))
    result = ff.fit(ff.FedAvg(), fed, rounds=1)
    assert [tuple(w.shape[1:]) for name, w in result.server["w"].items() if "weight" in name] == layers


def test_what_each_column_is_is_no_warning_but_what_may_be_wrong_is_one(tmp_path):
    for name in "ab":
        rows = [f"{i % 9},{'mw'[i % 2]},{i},{i % 2}" for i in range(60)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,sex,id,label", *rows]) + "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fed = ff.data.folder(tmp_path)
        ff.fit(ff.FedAvg(), fed, rounds=1, bayes="none")
    assert "numbers: age" in fed.describe() and "left out: id" in fed.describe()
    with (tmp_path / "b.csv").open("a") as file:
        file.write("1,m,1,\n")  # no label
    with pytest.warns(UserWarning, match="without a label") as told:
        ff.fit(ff.FedAvg(), ff.data.folder(tmp_path), rounds=1, bayes="none")
    assert len(told) == 1


def test_compare_gives_the_tables_over_the_seeds():
    methods, seeds = [ff.Focus(M=2), ff.FedAvg()], [0, 3]
    found = ff.compare(methods, lambda seed: ff.data.synthetic(seed, n=20), seeds=seeds, rounds=4)
    by_hand = {
        (method.name, seed): ff.fit(method, ff.data.synthetic(seed, n=20), seed=seed, rounds=4)
        for method in methods
        for seed in seeds
    }
    assert [row["loss"] for row in found.rows] == [result.loss.tolist() for result in by_hand.values()]
    assert [row["seed"] for row in found.rows] == [0, 3, 0, 3]
    (gains,) = found.gains.values()
    pair = gains.pairs[9][1]  # agent 9, the second seed
    assert pair.ours == by_hand["FOCUS", 3].row()["loss"][9] and pair.se is not None
    mean = np.mean([by_hand["FedAvg", seed].row()["avg_loss"] for seed in seeds])
    assert f"{mean:.4f}" in found._repr_html_() and "mean over 2 seeds" in found._repr_html_()
    assert "2 seed(s)" in str(found)
