"""Validated best losses: nobody is rewarded by construction, test data choose nothing, and the interval holds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.data import need_natural

import focusfl as ff
from focusfl.data.federation import Federation, Rows
from focusfl.fairness import metrics
from focusfl.fairness.best_loss import choose, estimation_error, limits
from focusfl.fairness.examples import Examples
from focusfl.fairness.intervals import Interval
from focusfl.report import certainty, worse_off
from focusfl.research import best_loss_coverage
from focusfl.research.best_loss_coverage import logistic
from focusfl.run import candidates, tables
from focusfl.run.best_loss import Surrogates
from focusfl.run.candidates import Candidates, Plan
from focusfl.run.folds import FOLDS, folds_of
from focusfl.run.setup import Setup
from focusfl.util.errors import Interrupted


def unknown(n: int = 40, E: int = 4, **more: Any) -> Federation:
    """Two groups of agents; neither their best losses nor their groups are known."""
    return replace(logistic(3, E=E, n=n, n_test=200), bayes=None, **more)


def setup_of(fed: Federation, **options: Any) -> Setup:
    return Setup.of(ff.FedAvg(), fed, 4, **options)


# Which examples


def test_every_training_example_is_held_out_once_and_no_test_example_is_trained_on() -> None:
    fed = unknown(n=10).with_validation(0.2, 0)
    folds = folds_of(fed, seed=0, single=False)
    judged = torch.stack([folds.judged(k) for k in range(folds.models)])
    trained = torch.stack([folds.training(k) for k in range(folds.models)])
    assert not (trained & judged).any() and not trained[:, folds.test].any()
    assert judged[:, folds.test].all() and (judged[:, ~folds.test].sum(0) == 1).all()
    assert trained[FOLDS].sum() == 40  # the last model has all training and validation examples


def test_one_split_takes_the_validation_examples_and_a_tiny_agent_keeps_its_own() -> None:
    agents = [([[float(i)] for i in range(n)], [0, 1] * (n // 2)) for n in (2, 10)]
    fed = ff.Federation.from_agents(agents, test=[([[0.0]], [0])] * 2)
    single = folds_of(fed.with_validation(0.3, 0), seed=0, single=True)
    held = single.rows.x[single.held_out].flatten().tolist()
    assert held == fed.with_validation(0.3, 0).validation_rows.of(1).x.flatten().tolist()
    assert single.models == 1 and (single.agent[single.held_out] == 1).all()
    assert folds_of(fed, seed=0, single=True).held_out.sum() == 2  # a fifth of ten, of nobody else


def test_test_data_choose_nothing() -> None:
    fed = unknown()
    wrong = replace(fed, testing=Rows(fed.testing.x, 1 - fed.testing.y, fed.testing.offsets))
    one, other = (Surrogates().best(setup_of(each)) for each in (fed, wrong))
    assert one.chosen == other.chosen and (other.loss > one.loss).all()


# Which model, and its interval


def test_few_examples_follow_what_is_best_for_all() -> None:
    losses = torch.tensor([[1.0, 1.0, 2.0], [2.0, 2.0, 1.0]])
    assert choose(losses, torch.tensor([1000, 1000, 1000])).tolist() == [0, 0, 1]
    assert choose(losses, torch.tensor([1000, 1000, 3])).tolist() == [0, 0, 0]
    assert choose(torch.tensor([[torch.inf, 1.0], [1.0, 2.0]]), torch.tensor([50, 50])).tolist() == [1, 1]


def test_the_error_of_estimation_is_that_of_a_loss_that_falls_like_1_over_n() -> None:
    """L + c / n with L = 2, c / n = 0.3; without one of three folds it is L + c / (2 n / 3)."""
    noise = torch.tensor([-1.0, 1.0, -1.0, 1.0])
    final, folds = Examples(2.3 + noise, torch.tensor([0, 4])), (2.45 + noise).expand(3, 4)
    assert estimation_error(final, folds).item() == pytest.approx(0.3)
    low, estimate, high = (v.item() for v in limits(final, folds, torch.tensor([0.1])) or ())
    t, sd = 3.182446, (4 / 3) ** 0.5  # Student's t with 3 degrees of freedom
    half = ((t * sd / 2) ** 2 + (1.959964 * 0.3) ** 2) ** 0.5
    assert estimate == pytest.approx(2.0) and high - estimate == pytest.approx(half, rel=1e-5) and low < 2 < high
    wider = limits(final, folds, torch.tensor([0.6]))
    assert wider is not None and wider.high > high
    assert limits(Examples(noise[:1], torch.tensor([0, 1])), noise[:1].expand(3, 1), torch.zeros(1)) is None


def test_intervals_contain_the_true_best_losses() -> None:
    """A small version of `python -m focusfl.research.coverage --best-loss`: there, 300 draws."""
    rng = torch.Generator().manual_seed(0)
    rows = [best_loss_coverage.measure(best_loss_coverage.CASES[name], rng) for name in CASES for _ in range(2)]
    contains = sum(row["contains, %"] for row in rows) / len(rows)
    assert contains >= 90  # of 24 intervals; 93 % and more of many
    assert all(0.9 < row["estimate / true"] < 1.2 and row["width / true"] < 1.2 for row in rows)


CASES = ("regression, one outlier", "classes, two groups")


# Nobody by construction


def test_no_method_has_an_faa_of_0_by_construction() -> None:
    fed, methods = unknown(), (ff.Local(), ff.FedAvg(), ff.Focus(M=2), ff.FedSoft(M=2), ff.Ditto())
    results = [ff.fit(method, fed, rounds=4, seed=1) for method in methods]
    assert all(result.best.kind == "validated" and result.faa > 1e-3 for result in results)
    assert all(torch.equal(result.bayes, results[0].bayes) for result in results)  # the same for all
    assert ff.fit(ff.Local(), fed, rounds=4, seed=1, bayes="agent").faa == 0


def test_a_method_that_is_better_than_alone_for_all_is_not_called_less_fair_than_local() -> None:
    """A flexible network overfits 30 examples of its own; the agents of a group share what they need."""
    fed, network = unknown(n=30, E=6), partial(ff.models.mlp, 5, 32, 2)
    options: dict[str, Any] = {"rounds": 40, "model": network, "train": ff.Train(lr=0.3, steps=10)}

    def compared(kind: str) -> tuple[Any, Any, Interval]:
        soft, local = (ff.fit(m, fed, bayes=kind, **options) for m in (ff.FedSoft(M=2), ff.Local()))
        gap, _ = certainty.faa_difference([soft.row()], [local.row()])
        assert gap is not None
        return soft, local, gap

    soft, local, by_construction = compared("agent")
    assert (soft.loss < local.loss).all() and local.faa == 0 and by_construction.low > 0  # "beyond noise"
    soft, local, gap = compared("validated")
    assert gap.low <= 0 and local.faa > soft.faa
    table = worse_off.table({"FedSoft": [soft.row()], "Local": [local.row()]})
    assert table == (["method", "worse than alone"], [["FedSoft", "0 of 6"], ["Local", "-"]])


def test_on_heart_best_losses_and_faa_do_not_grow_with_the_rounds() -> None:
    need_natural("heart")
    fed = ff.data.heart()
    short, long = (ff.fit(ff.Focus(), fed, rounds=T) for T in (3, 60))
    assert long.bayes.mean() == pytest.approx(short.bayes.mean().item(), rel=0.05)
    assert long.faa < 1.2 * short.faa
    seeds = [long, *(ff.fit(ff.Focus(), fed, rounds=60, seed=seed, bayes="none") for seed in (1, 2))]
    mean = sum(float(each.loss.mean()) for each in seeds) / 3
    assert mean < sum(long.row()["alone"]) / 4  # the agents are better off than alone
    before = [Surrogates().best(each.setup.changed(bayes="agent")).loss for each in (short, long)]
    assert before[1].mean() > 3 * before[0].mean()  # the network that is trained alone overfits
    faa = [metrics.faa(each.loss - best) for each, best in zip((short, long), before, strict=True)]
    assert faa[1] > 2 * faa[0]


# How it runs


def test_a_run_that_is_interrupted_continues_and_gives_the_same_bits(tmp_path: Path) -> None:
    setup, trained = setup_of(unknown(), checkpoint_every=3), list[int]()
    whole = Surrogates().best(setup, watch=lambda done: trained.append(done.trained))
    rounds = len(trained)
    for limit in (5, 20, 30):
        seen: list[int] = []
        with pytest.raises(Interrupted):
            Surrogates(tmp_path).best(setup, watch=lambda _: seen.append(0), stop=lambda: len(seen) >= limit)  # noqa: B023
    again: list[int] = []
    resumed = Surrogates(tmp_path).best(setup, watch=lambda done: again.append(done.t))
    assert len(again) < rounds and again == sorted(again) and again[-1] == 4  # as many as the run
    stored = Surrogates(tmp_path).best(setup, watch=lambda _: pytest.fail("it is stored"))
    for found in (resumed, stored):
        assert torch.equal(found.loss, whole.loss) and found.chosen == whole.chosen
        assert torch.equal(found.alone, whole.alone) and torch.equal(found.examples, whole.examples)
        assert all(torch.equal(a, b) for a, b in zip(found.limits, whole.limits, strict=True))
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".lock", ".safetensors"]


def test_killed_before_its_losses_were_written_a_part_starts_over(tmp_path: Path) -> None:
    plan = Plan.of(setup_of(unknown(), checkpoint_every=3))
    whole = Candidates(plan, tmp_path).best()
    (tmp_path / "alone" / "4.safetensors").unlink()
    assert torch.equal(Candidates(plan, tmp_path).best().examples, whole.examples)
    assert (tmp_path / "alone" / "4.safetensors").exists()


def test_engines_agree() -> None:
    one, other = (Surrogates().best(setup_of(unknown(n=20), engine=engine)) for engine in ("serial", "vectorised"))
    assert torch.allclose(one.loss, other.loss, atol=1e-4) and one.chosen == other.chosen


def test_where_folds_are_expensive_there_is_one_split_and_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    setup = setup_of(unknown())
    assert not Plan.of(setup).single and Plan.of(setup).setup.settings.T == candidates.MIN_ROUNDS
    monkeypatch.setattr(candidates, "MAX_WORK", 1e6)
    best = Surrogates().best(setup, watch=lambda done: rounds.append(done.t))
    assert Plan.of(setup).single and best.limits is None and best.kind == "validated"
    assert len(rounds) == 4 * 4  # four kinds of networks, as many rounds as the run
    result = ff.fit(ff.FedAvg(), unknown(), rounds=4)
    assert "bayes_low" not in result.row() and len(result.row()["alone"]) == 4


def test_training_that_diverges_goes_on_with_a_rate_that_is_found() -> None:
    fed = replace(best_loss_coverage.CASES["regression, one outlier"](0), bayes=None, clusters=None)
    best = Surrogates().best(Setup.of(ff.FedAvg(), fed, 30, train=ff.Train(lr=50.0)))
    assert torch.isfinite(best.loss).all() and best.loss.max() < 2


def test_images_and_losses_of_the_users_own_have_no_tables() -> None:
    fed = unknown(n=12)
    setup = setup_of(fed)
    folds = folds_of(fed, 0, False)
    assert tables.apply(folds, setup.task)
    assert not tables.apply(folds, setup_of(fed, loss="focal:gamma=2").task)
    x = torch.zeros(len(folds.rows.y), 1, 4, 4)
    assert not tables.apply(replace(folds, rows=folds.rows._replace(x=x)), setup.task)


def test_one_class_in_a_fold_and_a_class_that_training_lacks() -> None:
    agents = [([[0.0], [1.0], [2.0], [3.0]], [0, 0, 0, 0])] * 3
    test = [([[0.0], [1.0]], [0, 1])] * 3
    fed = ff.Federation.from_agents(agents, test=test, classes=2)
    best = Surrogates().best(Setup.of(ff.FedAvg(), fed, 2, validation=0))
    assert torch.isfinite(best.loss).all() and not any("trees" in name for name in best.chosen)


def test_agents_that_move_in_different_directions_are_in_different_groups() -> None:
    moves = torch.tensor([[1.0, 0.1, 0], [1.0, -0.1, 0], [0, 1.0, 0], [0.1, 1.0, 0], [0, 0, 1.0], [0, 0.1, 1.0]])
    groups = candidates.similar(moves).tolist()
    assert groups[0] == groups[1] and groups[2] == groups[3] and groups[4] == groups[5] and len(set(groups)) == 3


def test_a_row_says_where_best_losses_come_from_and_is_read_back(tmp_path: Path) -> None:
    fed = unknown()
    result = ff.fit(ff.FedAvg(), fed, rounds=2, out=tmp_path / "run")
    row = result.row()
    assert row["bayes_kind"] == "validated" and len(row["bayes_from"]) == len(row["alone"]) == fed.E
    assert all(
        a <= b <= c for a, b, c in zip(row["bayes_low"], row["bayes_estimate"], row["bayes_high"], strict=True)
    )
    again = ff.fit(ff.FedAvg(), fed, rounds=2, out=tmp_path / "run", resume=True).row()
    assert again["bayes"] == row["bayes"] and again["alone_se"] == row["alone_se"]
