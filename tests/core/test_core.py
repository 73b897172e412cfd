"""Stacks of models, trees of tensors, options of training, and wrapped algorithms."""

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from focusfl.core import Algorithm, Prerequisite, Wrapper, mean_or_keep, one_hot, row, scale, select_model
from focusfl.core.train import Train
from focusfl.core.tree import RunningSum, flatten, unflatten
from focusfl.util.errors import InputError


def test_scale_by_hand():
    w = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "b": torch.tensor([5.0, 6.0])}
    out = scale(w, torch.tensor([10.0, 0.5]))
    assert out["a"].tolist() == [[10, 20], [1.5, 2]] and out["b"].tolist() == [50, 3]


def test_a_model_that_no_agent_holds_does_not_change():
    w = {"a": torch.tensor([[1.0], [7.0]])}
    out = mean_or_keep(w, {"a": torch.tensor([[6.0], [0.0]])}, torch.tensor([2.0, 0.0]))
    assert out["a"].tolist() == [[3.0], [7.0]]


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=8), st.lists(st.floats(-5, 5), min_size=8, max_size=8))
def test_a_mean_lies_between_the_smallest_and_the_largest_value(weights, values):
    pairs = list(zip(weights, values, strict=False))
    total = {"a": torch.tensor([[sum(w * v for w, v in pairs)]])}
    mean = mean_or_keep({"a": torch.zeros(1, 1)}, total, torch.tensor([sum(weights)]))["a"].item()
    used = [v for _, v in pairs]
    assert min(used) - 1e-4 <= mean <= max(used) + 1e-4


@given(st.permutations(range(30)))
def test_sums_do_not_depend_on_the_order(order):
    terms = torch.randn(30, 3, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(-4, 5, 4)
    one, other = RunningSum(), RunningSum()
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


def test_the_cosine_schedule_goes_from_lr_to_nearly_zero():
    train = Train(lr=1.0, schedule="cosine")
    assert train.lr_at(0, 10) == 1.0
    assert abs(train.lr_at(9, 10) - 0.5 * (1 - 0.9510565)) < 1e-6  # cos(0.9 pi) = -0.9510565


def test_rows_are_selected_on_the_device_of_the_models():
    """An agent's number is on the cpu; fake tensors replace a GPU."""
    with FakeTensorMode():
        stack = {"a": torch.empty(4, 3, 2, device="cuda"), "b": {"c": torch.empty(4, device="cuda")}}
        e = torch.tensor(2)
        taken = row(stack, e)
        assert taken["a"].shape == (3, 2) and taken["a"].device.type == taken["b"]["c"].device.type == "cuda"
        assert select_model({"a": stack["a"]}, e)["a"].device.type == "cuda"
        assert one_hot(torch.empty((), dtype=torch.long, device="cuda"), 3).device.type == "cuda"


MEMBERS = sorted(k for k in {*dir(Algorithm), *Algorithm.__annotations__} if not k.startswith("_"))
FIRST = Prerequisite("first method", lambda clusters: ("second method", clusters))  # type: ignore[arg-type]


class Recorder:
    """A stand-in for the inner method of a Wrapper: it records the calls of its methods."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, member):
        if not inspect.isfunction(getattr(Algorithm, member, None)):
            return f"value of {member}"

        def method(*arguments):
            self.calls.append((member, arguments))
            return FIRST if member == "prerequisite" else f"result of {member}"

        return method


@pytest.mark.parametrize("member", MEMBERS)
def test_a_wrapper_forwards_every_public_member(member):
    inner = Recorder()
    wrapper = Wrapper(inner)
    definition = getattr(Algorithm, member, None)
    if not inspect.isfunction(definition):
        assert getattr(wrapper, member) == f"value of {member}"
        return
    arguments = tuple(list(inspect.signature(definition).parameters)[1:])
    result = getattr(wrapper, member)(*arguments)
    assert inner.calls == [(member, arguments)]
    if member == "prerequisite":  # both methods are wrapped, too
        assert result.algorithm == Wrapper("first method")
        assert result.with_clusters([0, 1]) == Wrapper(("second method", [0, 1]))
    elif member != "check":  # which returns nothing
        assert result == f"result of {member}"
