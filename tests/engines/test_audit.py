"""The server's checks: honest uploads of every method pass, and each lie is named with the agent that tells it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import focusfl as ff
from focusfl.core import Algorithm, Contribution, Upload, scale, weighted_contribution
from focusfl.core.tree import tree_map
from focusfl.engines import audit
from focusfl.research.studies.lies import LIES, Lie, LyingAgents
from focusfl.run import checkpoint
from focusfl.run.fit import after_prerequisite
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.progress import RunProgress

SIZES = [9, 30, 14, 21, 11, 26]


T = 5
TRAIN = ff.Train(lr=0.2, steps=4)


def federation(agents: int = len(SIZES)) -> ff.Federation:
    draws = torch.Generator().manual_seed(3)

    def agent(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, 6, generator=draws)
        return x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long()

    training, testing = ([agent(n) for n in SIZES][:agents] for _ in range(2))
    return ff.Federation.from_agents(training, test=testing, classes=3, model=lambda: ff.models.mlp(6, 5, 3))


def train(
    algorithm: Algorithm, lie: Lie = lambda upload: upload, liars: tuple[int, ...] = (), **options: Any
) -> Any:
    """The engine after T rounds, and the accuracy of the agents."""
    setup = Setup.of(algorithm, federation(), T, engine="serial", train=TRAIN)
    with RunProgress(False) as bars:
        setup = after_prerequisite(setup, bars)
    engine = LyingAgents(setup.task, setup.fed, setup.settings.local, T, 0, lie=lie, liars=liars)
    *_, last = run(setup.on(engine))
    return engine, last


FOCUS = [ff.Focus(), ff.Focus(M=2, init="tied"), ff.Focus(M=2, weight_by_n=True), ff.Focus.algorithm1(3)]
ROBUST = [ff.Focus(M=2, robust="clip", weight_by_n=True), ff.Focus(M=2, robust="trim")]
EVERY = [*(method() for method in ff.algorithms.ALGORITHMS.values()), *FOCUS, *ROBUST, ff.CGSV(keep=True)]


@pytest.mark.parametrize("algorithm", EVERY, ids=repr)
def test_no_honest_upload_is_refused(algorithm: Algorithm) -> None:
    engine, _ = train(algorithm)
    assert engine.refused == {}


WEIGHTED = [
    ff.FedAvg(),
    ff.FedProx(),
    ff.Ditto(),
    ff.FedEM(M=2),
    ff.FedSoft(M=2),
    ff.IFCA(M=2),
    ff.AFL(),
    *FOCUS,
    *ROBUST,
]


@pytest.mark.parametrize("lie", ["share-6", "share-1e9", "share-negative"])
@pytest.mark.parametrize("algorithm", WEIGHTED, ids=repr)
def test_an_agent_that_claims_another_weight_is_refused_in_every_round(algorithm: Algorithm, lie: str) -> None:
    engine, _ = train(algorithm, LIES[lie], liars=(2,))
    assert engine.refused == {2: T}


def test_an_agent_that_claims_every_cluster_is_refused_once_there_are_clusters() -> None:
    engine, _ = train(ff.Focus.algorithm1(3), LIES["share-all"], liars=(2,))
    assert engine.refused == {2: T}
    engine, _ = train(ff.IFCA(M=3), LIES["share-all"], liars=(2,))
    assert engine.refused == {2: T}


def test_hard_clusters_belong_to_the_server() -> None:
    """An agent of cluster 0 that sends a model for cluster 1, with its own true weight."""

    def other_cluster(upload: Upload) -> Upload:
        return Upload(
            {"theta": {k: v.flip(0) for k, v in upload.add["theta"].items()}, "n": upload.add["n"].flip(0)}, {}
        )

    engine, _ = train(ff.HardCluster(M=2, clusters=(0, 0, 0, 1, 1, 1)), other_cluster, liars=(1,))
    assert engine.refused == {1: T}


ONLY_LAYERS_OR_NOTHING = ("fedma", "pfnm", "local")  # what they send, and not in every round
SENDS_MODELS = [name for name in ff.algorithms.ALGORITHMS if name not in ONLY_LAYERS_OR_NOTHING]


@pytest.mark.parametrize("name", SENDS_MODELS)
def test_a_number_of_1e30_is_refused_whatever_the_method(name: str) -> None:
    engine, last = train(ff.algorithms.ALGORITHMS[name](), LIES["upload-1e30"], liars=(0,))
    assert engine.refused == {0: T} and last.scores.acc.mean() > 0.4


def test_liars_leave_no_trace_in_the_others_models() -> None:
    """Refused from the first round on, a liar is the same as an agent that never answers."""
    _, lied = train(ff.FedAvg(), LIES["share-1e9"], liars=(5,))
    *_, absent = run(Setup.of(ff.FedAvg(), federation(5), T, engine="serial", train=TRAIN))
    assert absent.scores is not None and torch.equal(lied.scores.loss[:5], absent.scores.loss)


def claims(weight: list[float], total: float | None, **more: Any) -> Contribution:
    true = None if total is None else torch.tensor(total)
    return Contribution({}, {}, torch.tensor(weight), true, **more)


@pytest.mark.parametrize(
    ("weight", "total", "word"),
    [
        ([1.0, 0.0], 1.0, ""),
        ([0.5, 0.5049], 1.0, ""),  # within one per cent
        ([0.5, 0.6], 1.0, "1.1"),
        ([6.0], 1.0, "6"),
        ([2.0, -1.0], 1.0, "-1"),  # the right total
        ([1.0, 1.0, 1.0], 1.0, "3"),
        ([1e9], 20.0, "1e+09"),
        ([float("nan")], 1.0, "nan"),
        ([3.0], None, ""),  # the server cannot know
        ([-3.0], None, "-3"),
    ],
)
def test_weights_are_positive_and_add_up(weight: list[float], total: float | None, word: str) -> None:
    lie = audit.false_claim(claims(weight, total))
    assert word in lie and bool(lie) == bool(word)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5).filter(lambda v: sum(v) > 1e-3), st.integers(1, 50))
def test_shares_of_any_agents_pass_and_sums_of_shares_too(shares: list[float], agents: int) -> None:
    weight = torch.tensor(shares) / sum(shares)
    one = Contribution({}, {}, weight, torch.tensor(1.0), shares={"held": weight})
    many = Contribution({}, {}, agents * weight, torch.tensor(float(agents)), shares={"held": agents * weight})
    assert audit.false_claim(one) == audit.false_claim(many, agents) == ""


def test_a_share_above_one_is_named() -> None:
    assert "agree" in audit.false_claim(claims([1.0], 1.0, shares={"agree": torch.tensor([0.2, 7.0])}))


def test_an_update_30_times_as_long_as_the_median_passes_and_a_longer_one_does_not() -> None:
    """Lengths 1, 1, 1 and x beside a model of length 1, so that no update counts as short."""

    w = {"a": torch.tensor([[1.0, 0.0]])}

    def upload(length: float, n: float = 10.0) -> Upload:
        theta = torch.tensor([[1.0, length]])
        return Upload({"theta": {"a": n * theta}, "n": torch.tensor(n)}, {})

    def refused(length: float) -> dict[int, str]:
        uploads = {0: upload(1), 1: upload(1), 2: upload(1), 3: upload(length)}
        return audit.suspects(ff.FedAvg(), uploads, lambda e: {"w": w}, dict.fromkeys(range(4), 10), ("a",))

    assert refused(29.9) == {} and list(refused(30.1)) == [3]
    assert "30.1 times" in refused(30.1)[3]
    assert list(refused(1e30)) == [3]


def test_short_updates_are_never_too_long() -> None:
    """Agents that have nothing left to learn do not make one that still learns an outlier."""
    w = {"a": torch.tensor([[100.0]])}

    def upload(change: float) -> Upload:
        return Upload({"theta": {"a": torch.tensor([[100.0 + change]])}, "n": torch.tensor(1.0)}, {})

    uploads = {0: upload(1e-4), 1: upload(1e-4), 2: upload(2.9)}  # 30 times a thousandth of the model's length is 3
    sizes = dict.fromkeys(range(3), 1)
    assert audit.suspects(ff.FedAvg(), uploads, lambda e: {"w": w}, sizes, ("a",)) == {}
    assert list(audit.suspects(ff.FedAvg(), {**uploads, 2: upload(3.1)}, lambda e: {"w": w}, sizes, ("a",))) == [2]


def histogram(*lengths: float) -> torch.Tensor:
    def one(length: float) -> Contribution:
        return Contribution({}, {"a": torch.tensor([[length]])})

    return torch.stack([audit.size_histogram(one(length), ("a",)) for length in lengths]).sum(0)


def false_sum(change: float, counts: torch.Tensor, w: float = 10.0, name: str = "a", agents: int = 4) -> str:
    mean = Contribution({name: torch.tensor([[w]])}, {name: torch.tensor([[change]])})
    return audit.false_sum(mean, counts, agents, ("a",))


def test_in_a_sum_the_median_is_that_of_the_histogram() -> None:
    assert false_sum(59, histogram(1, 1, 1, 1)) == ""  # 1 is in the bin from 1 to 2
    assert "update" in false_sum(61, histogram(1, 1, 1, 1))


def test_a_false_histogram_cannot_lift_the_limit_beyond_30_times_the_model() -> None:
    """One agent of four takes the others' counts away and puts them where the longest updates are."""
    stolen = 4 * histogram(1e18)
    assert false_sum(299, stolen) == "" and "update" in false_sum(301, stolen)
    fractions = histogram(1, 1, 1) - 0.49 / 3 * histogram(2, 4, 8) + 1.49 * histogram(1e18)
    assert "histogram" in false_sum(1e5, fractions)


def test_in_a_sum_batch_statistics_have_a_limit() -> None:
    assert false_sum(299, histogram(1, 1, 1, 1), name="mean") == ""
    assert "statistics" in false_sum(301, histogram(1, 1, 1, 1), name="mean")


def test_models_that_nobody_holds_are_not_compared_in_a_sum() -> None:
    """Rounding of fixed-point numbers, divided by no weight at all, would look like a long update."""
    w, sums = {"a": torch.ones(2, 1)}, {"a": torch.tensor([[4.0], [1e-10]])}
    found = weighted_contribution(w, sums, torch.tensor([4.0, 0.0]), torch.tensor(4.0))
    assert audit.false_sum(found, histogram(1, 1, 1, 1), 4, ("a",)) == ""


def one_upload(algorithm: Algorithm, upload: Upload, w: dict[str, torch.Tensor], others: int = 3) -> dict[int, str]:
    """What is said if the others send an honest upload that changes nothing, and agent 9 sends this."""
    weight = torch.eye(len(next(iter(w.values()))))[0]
    honest = Upload({"theta": scale(w, weight), "agents": weight}, {})
    uploads = {**dict.fromkeys(range(others), honest), 9: upload}
    return audit.suspects(algorithm, uploads, lambda e: {"w": w}, dict.fromkeys(uploads, 1), ("a",))


def test_a_long_model_with_a_tiny_weight_is_a_long_update() -> None:
    """Of a cluster that nobody else holds, the server divides by that weight alone."""
    w = {"a": torch.ones(2, 1)}

    def upload(second: float, weight: float) -> Upload:
        return Upload({"theta": {"a": torch.tensor([[1.0], [second]])}, "agents": torch.tensor([1.0, weight])}, {})

    assert one_upload(ff.IFCA(M=2), upload(1e-19, 1e-19), w) == {}
    assert list(one_upload(ff.IFCA(M=2), upload(0.05, 1e-19), w)) == [9]
    assert list(one_upload(ff.IFCA(M=2), upload(0.05, 0.0), w)) == [9]
    assert list(one_upload(ff.IFCA(M=2), upload(0.0, -1e-3), w)) == [9]


def test_a_negative_variance_is_refused() -> None:
    w = {"a": torch.ones(1, 1), "bn.running_var": torch.ones(1, 1)}

    def upload(variance: float) -> Upload:
        theta = {"a": torch.ones(1, 1), "bn.running_var": torch.tensor([[variance]])}
        return Upload({"theta": theta, "agents": torch.ones(1)}, {})

    assert one_upload(ff.IFCA(M=1), upload(0.99), w) == {}
    assert one_upload(ff.IFCA(M=1), upload(0.97), w) == {}
    assert "variance" in one_upload(ff.IFCA(M=1), upload(-0.5), w)[9]
    assert "variance" in one_upload(ff.IFCA(M=1), upload(-1e-5), w)[9]
    assert checkpoint.problem("server/w/bn.running_var", torch.tensor([-0.1])) is not None


def test_of_two_agents_the_one_that_trains_is_not_refused_because_the_other_does_not() -> None:
    w = {"a": torch.ones(1, 1)}

    def upload(value: float) -> Upload:
        return Upload({"theta": {"a": torch.tensor([[value]])}, "agents": torch.ones(1)}, {})

    assert one_upload(ff.IFCA(M=1), upload(20.0), w, others=1) == {}
    assert list(one_upload(ff.IFCA(M=1), upload(32.0), w, others=1)) == [9]


def test_qffl_divides_by_no_hidden_weight() -> None:
    def no_weight(upload: Upload) -> Upload:
        return Upload({"Delta": tree_map(lambda v: v + 1e3, upload.add["Delta"]), "h": 0 * upload.add["h"]}, {})

    engine, _ = train(ff.QFFL(), no_weight, (2,))
    assert engine.refused == {2: T}


def test_votes_and_lengths_cannot_exceed_the_labels() -> None:
    def every_length(upload: Upload) -> Upload:
        return Upload({**upload.add, "lengths": torch.ones_like(upload.add["lengths"])}, upload.each)

    def votes(upload: Upload) -> Upload:
        return Upload({**upload.add, "agree": 1 + upload.add["agree"]}, upload.each)

    engine, _ = train(ff.Focus(M=2, robust="clip"), every_length, (2,))
    assert engine.refused == {2: T}
    engine, _ = train(ff.Focus(), votes, (2,))
    assert engine.refused == {2: T}


@pytest.mark.parametrize(
    "algorithm", [ff.FedAvg(), ff.Focus(M=2, warmup=2), ff.CFL(), ff.FeSEM(M=2), ff.CGSV()], ids=repr
)
def test_honest_batch_norm_passes(algorithm: Algorithm) -> None:
    def network() -> torch.nn.Module:
        layers = torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.Linear(5, 3)
        return torch.nn.Sequential(*layers)

    setup = Setup.of(algorithm, federation(), T, network, engine="serial", train=TRAIN)
    engine = LyingAgents(setup.task, setup.fed, setup.settings.local, T, 0, lie=lambda u: u, liars=())
    *_, _ = run(setup.on(engine))
    assert engine.refused == {}


def test_a_histogram_counts_each_agent_once() -> None:
    zero = Contribution({}, {"a": torch.zeros(1, 1)})
    assert audit.false_sum(zero, histogram(1, 2, 3), 3, ("a",)) == ""
    assert "histogram" in audit.false_sum(zero, histogram(1, 2, 3), 4, ("a",))
    assert "histogram" in audit.false_sum(zero, 100 * histogram(1, 2, 3), 3, ("a",))
