"""FOCUS with agents whose uploads are wrong: clipped updates, trimmed means."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import focusfl as ff
from focusfl.algorithms.focus.averaging import Clip, Trim
from focusfl.core import Data
from focusfl.core.tree import RunningSum
from focusfl.engines.one_agent import LocalAgent
from focusfl.flower.protocol.secure_round import require_sums_only
from focusfl.models.task import Task
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError

FLOATS = st.floats(-100, 100, width=32)


def test_an_update_is_shortened_to_the_bound_and_its_length_is_returned():
    """(3, 4) has length 5: at most 2 gives (1.2, 1.6). Batch statistics stay."""
    w = {"a": torch.zeros(2, 2), "mean": torch.zeros(2, 1)}
    theta = {"a": torch.tensor([[3.0, 4.0], [0.3, 0.4]]), "mean": torch.full((2, 1), 9.0)}
    short, length = Clip().shorten(w, theta, torch.tensor([2.0, 2.0]), ("a",))
    assert torch.allclose(short["a"], torch.tensor([[1.2, 1.6], [0.3, 0.4]]))
    assert torch.allclose(length, torch.tensor([5.0, 0.5])) and (short["mean"] == 9).all()


@settings(deadline=None)
@given(st.lists(st.floats(2**-20, 2**20, width=32), min_size=3, max_size=25))
def test_the_bound_is_twice_the_median_length_to_within_half_an_octave(lengths):
    total = sum(Clip().histogram(torch.tensor([v]), torch.ones(1)) for v in lengths)
    bound = float(Clip().next_bounds(torch.zeros(1), total, torch.arange(1)))
    median = sorted(lengths)[(len(lengths) - 1) // 2]
    assert 2 * median * 0.999 <= bound <= 2 * median * 2**0.5 * 1.001


def test_bounds_of_clusters_without_agents_and_of_those_not_in_use():
    lengths = torch.cat([Clip().histogram(torch.tensor([1.0]), torch.ones(1)), torch.zeros(1, Clip.BINS)])
    bounds = Clip().next_bounds(torch.tensor([7.0, 3.0, 5.0]), lengths, torch.tensor([0, 1]))
    assert torch.allclose(bounds, torch.tensor([2 * 2**0.5, 3.0, 3.0]))


def test_the_largest_and_smallest_values_do_not_count():
    """Ten agents, the worst 3.5 at each end cut: the mean of 4 and 5 with weight 0.5 of 3 and 6."""
    values = torch.tensor([[float(v)] for v in (1000, 1, 2, 3, 4, 5, 6, 7, 8, -1000)])[:, None]  # [10, 1, 1]
    trimmed = Trim().trimmed_mean({"a": torch.zeros(1, 1)}, {"a": values}, torch.ones(10, 1))
    assert float(trimmed["a"]) == pytest.approx((0.5 * 3 + 4 + 5 + 0.5 * 6) / 3)


def test_the_trimmed_mean_of_no_agent_and_of_one_agent():
    w = {"a": torch.tensor([[7.0], [7.0]])}
    theta = {"a": torch.tensor([[[1.0], [1.0]], [[2.0], [2.0]]])}
    trimmed = Trim().trimmed_mean(w, theta, torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    assert trimmed["a"].tolist() == [[1.0], [7.0]]


@settings(deadline=None)
@given(st.lists(FLOATS, min_size=7, max_size=7), st.lists(FLOATS, min_size=3, max_size=3), st.integers(-9, 9))
def test_three_of_ten_agents_cannot_move_the_mean_out_of_the_range_of_the_others(good, bad, power):
    values = torch.tensor(good + [v * 10.0**power for v in bad])
    trimmed = float(Trim().trimmed_mean({"a": torch.zeros(1)}, {"a": values[:, None]}, torch.ones(10, 1))["a"])
    slack = 1e-4 * max(map(abs, good)) + 1e-6
    assert min(good) - slack <= trimmed <= max(good) + slack


@settings(deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=8), st.floats(-5, 5, width=32), st.floats(0.125, 5, width=32))
def test_the_trimmed_mean_shifts_and_scales_with_its_values(values, shift, factor):
    def middle(v):
        return Trim().trimmed_mean({"a": torch.zeros(1)}, {"a": v[:, None]}, torch.ones(len(v), 1))["a"]

    v = torch.tensor(values)
    assert torch.allclose(middle(factor * v + shift), factor * middle(v) + shift, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("init", ["tied", "split"])
@pytest.mark.parametrize("kind", ["clip", "trim"])
def test_robust_averaging_costs_honest_agents_little(init, kind):
    fed = ff.data.rotated_digits(turns=[0] * 5 + [1] * 5)
    plain, robust = (
        ff.fit(ff.Focus(M=2, init=init, robust=r), fed, rounds=30, bayes="agent") for r in ("no", kind)
    )
    assert float(robust.acc.mean()) > float(plain.acc.mean()) - 0.02


@pytest.mark.slow
@pytest.mark.parametrize("M", [3, "auto"])
@pytest.mark.parametrize("kind", ["clip", "trim"])
def test_engines_agree(kind, M):
    fed = ff.data.rotated_digits(turns=[0, 0, 0, 1, 1, 1])
    algorithm = ff.Focus(M=M, init="split", robust=kind)
    a, b = (list(run(Setup.of(algorithm, fed, 12, engine=e), eval_every=0))[-1] for e in ("serial", "vectorised"))
    for k, v in a.server["w"].items():
        assert torch.allclose(v, b.server["w"][k], atol=1e-4)


def test_the_first_round_of_clip_only_measures():
    fed = ff.data.synthetic(E=4, n=50)
    setup = Setup.of(ff.Focus(M=2, robust="clip", init="tied"), fed, 3)
    server, _ = setup.start()
    first, second, _ = run(setup, eval_every=0)
    assert torch.allclose(first.server["w"]["1.weight"], server["w"]["1.weight"], atol=1e-6)
    assert (first.server["clip"]["bound"] > 0).all()
    assert not torch.allclose(second.server["w"]["1.weight"], server["w"]["1.weight"], atol=1e-3)


def test_with_clip_a_cluster_learns_if_its_only_agent_comes_every_fourth_round():
    """Its slope is -1, that of the others +1. Agents that do not train its model do not report a length for it."""
    task, train, x = (
        Task(torch.nn.Linear(1, 1, bias=False), None),
        ff.Train(lr=0.1, steps=5),
        torch.linspace(-1, 1, 20),
    )
    data = {e: Data(x[:, None], x if e < 3 else -x) for e in range(4)}
    focus = ff.Focus(M=2, init="tied", robust="clip")
    server = {"w": {"weight": torch.zeros(2, 1, 1)}, "clip": {"bound": torch.zeros(2)}}
    states = {e: {"log_pi": torch.log_softmax(torch.tensor([0.0, -10] if e < 3 else [-10, 0.0]), 0)} for e in data}
    for t in range(40):
        cohort, total = [0, 3] if t % 4 == 3 else [1, 2], RunningSum()
        for e in cohort:
            agent = LocalAgent(task, data[e], train, 0.1, 0, t, e)
            states[e], upload = focus.local(focus.downlink(server, torch.tensor(e)), states[e], agent)
            total.add(upload.add)
        server = focus.aggregate(server, total.result(), {}, torch.tensor(cohort))
    assert server["w"]["weight"].flatten().tolist() == pytest.approx([1, -1], abs=0.1)


def test_an_update_that_is_not_finite_is_removed_and_counts_as_the_longest():
    w = {"a": torch.tensor([[1.0], [1.0]]), "mean": torch.zeros(2, 1)}
    theta = {"a": torch.tensor([[torch.nan], [4.0]]), "mean": torch.tensor([[torch.inf], [9.0]])}
    short, length = Clip().shorten(w, theta, torch.tensor([2.0, 2.0]), ("a",))
    assert short["a"].tolist() == [[1.0], [3.0]] and short["mean"].tolist() == [[0.0], [9.0]]
    assert length.tolist() == [torch.inf, 3.0]
    assert Clip().histogram(length, torch.ones(2))[0].argmax() == Clip.BINS - 1
    several = {k: torch.stack([v, w[k] + 1, w[k] + 1]) for k, v in theta.items()}
    trimmed = Trim().trimmed_mean(w, several, torch.ones(3, 2))
    assert trimmed["a"][0].tolist() == [2.0] and trimmed["mean"][0].tolist() == [1.0]  # the mean of the two others
    assert torch.isfinite(trimmed["a"]).all() and torch.isfinite(trimmed["mean"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "vectorised"])
@pytest.mark.parametrize(("init", "M"), [("tied", 2), ("split", 2), ("split", "auto")])
@pytest.mark.parametrize("kind", ["clip", "trim"])
def test_one_agent_whose_training_overflows_does_not_stop_the_others(kind, init, M, engine):
    """Its inputs are 10,000 times those of the nine others, which all learn the same weights."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10, 20, 4)).astype("float32")
    agents = [(x[e] * (1e4 if e == 3 else 1), x[e].sum(1)) for e in range(10)]
    fed = ff.Federation.from_agents(agents, test=agents, model=lambda: torch.nn.Linear(4, 1))
    setup = Setup.of(
        ff.Focus(M=M, init=init, robust=kind), fed, 30, train=ff.Train(lr=0.05, steps=10), engine=engine
    )
    *_, done = run(setup)
    others = [float(v) for e, v in enumerate(done.scores.loss) if e != 3]
    assert max(others) < 0.05


def test_secure_sums_accept_clip_and_refuse_trim():
    fed = ff.data.synthetic(E=4, n=50)
    for kind in ("clip", "trim"):
        setup = Setup.of(ff.Focus(M=2, init="tied", robust=kind), fed, 5)
        if kind == "clip":
            require_sums_only(setup.algorithm, setup.start()[0], setup.task)
        else:
            with pytest.raises(InputError):
                require_sums_only(setup.algorithm, setup.start()[0], setup.task)


def test_robust_is_one_of_three():
    with pytest.raises(InputError, match="robust"):
        ff.Focus(robust="very")
