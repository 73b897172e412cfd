"""Averages of stacked models."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from focusfl.core import mean_or_keep, one_hot, one_of, row, scale
from focusfl.core.train import Train
from focusfl.core.tree import Total, flatten, unflatten
from focusfl.util.errors import InputError


def test_scale_by_hand():
    w = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "b": torch.tensor([5.0, 6.0])}
    out = scale(w, torch.tensor([10.0, 0.5]))
    assert out["a"].tolist() == [[10, 20], [1.5, 2]] and out["b"].tolist() == [50, 3]


def test_a_cluster_nobody_holds_stays_as_it_was():
    w = {"a": torch.tensor([[1.0], [7.0]])}
    out = mean_or_keep(w, {"a": torch.tensor([[6.0], [0.0]])}, torch.tensor([2.0, 0.0]))
    assert out["a"].tolist() == [[3.0], [7.0]]


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=8), st.lists(st.floats(-5, 5), min_size=8, max_size=8))
def test_mean_lies_between_the_least_and_the_largest(weights, values):
    pairs = list(zip(weights, values, strict=False))
    total = {"a": torch.tensor([[sum(w * v for w, v in pairs)]])}
    mean = mean_or_keep({"a": torch.zeros(1, 1)}, total, torch.tensor([sum(weights)]))["a"].item()
    used = [v for _, v in pairs]
    assert min(used) - 1e-4 <= mean <= max(used) + 1e-4


@given(st.permutations(range(30)))
def test_sums_do_not_depend_on_the_order(order):
    terms = torch.randn(30, 3, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(-4, 5, 4)
    one, other = Total(), Total()
    for e in range(30):
        one.add({"x": terms[e]})
        other.add({"x": terms[order[e]]})
    assert torch.equal(one.result()["x"], other.result()["x"])


def test_flatten_and_back():
    tree = {"a": {"b": torch.ones(1), "c": {"d": torch.zeros(2)}}, "e": torch.ones(3)}
    assert set(flatten(tree)) == {"a/b", "a/c/d", "e"}
    assert unflatten(flatten(tree)).keys() == tree.keys()


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": -1.0},
        {"lr": float("nan")},
        {"lr": 0.0},
        {"steps": 0},
        {"epochs": 0},
        {"batch": 0},
        {"momentum": 1.0},
    ],
)
def test_training_options_out_of_range_are_named(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Train(**wrong)


def test_cosine_schedule_goes_from_lr_to_nearly_zero():
    train = Train(lr=1.0, schedule="cosine")
    assert train.lr_at(0, 10) == 1.0
    assert abs(train.lr_at(9, 10) - 0.5 * (1 - 0.9510565)) < 1e-6  # cos(0.9 pi) = -0.9510565


def test_rows_are_taken_where_the_models_are():
    """An agent's number comes from the cpu; fake tensors stand for a GPU that is not here."""
    with FakeTensorMode():
        stack = {"a": torch.empty(4, 3, 2, device="cuda"), "b": {"c": torch.empty(4, device="cuda")}}
        e = torch.tensor(2)
        taken = row(stack, e)
        assert taken["a"].shape == (3, 2) and taken["a"].device.type == taken["b"]["c"].device.type == "cuda"
        assert one_of({"a": stack["a"]}, e)["a"].device.type == "cuda"
        assert one_hot(torch.empty((), dtype=torch.long, device="cuda"), 3).device.type == "cuda"
