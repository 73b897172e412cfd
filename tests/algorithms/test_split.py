"""The start "split" of FOCUS: sketches of updates, groups of agents, the number of groups, and whole runs."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import silhouette_score

import focusfl as ff
from focusfl.algorithms.focus import grouping, split
from focusfl.algorithms.focus.split import Split
from focusfl.fairness.metrics import adjusted_rand_index
from focusfl.flower.protocol.secure_round import require_sums_only
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.errors import Diverged, InputError


def stack(v):
    return {"a": v[None, : len(v) // 2], "b": v[None, len(v) // 2 :]}


@settings(deadline=None, max_examples=30)
@given(st.integers(257, 5000), st.integers(0, 2**30))
def test_a_sketch_keeps_length_and_angles(size, seed):
    """A count sketch keeps inner products in the mean; at length one their error has variance (1 + cos^2) / 256."""
    rng = torch.Generator().manual_seed(seed)
    u, v = torch.randn(2, size, generator=rng)
    u, v = u / u.norm(), (u + v) / (u + v).norm()  # at 45 degrees, about
    a, b = grouping.sketch(stack(u)), grouping.sketch(stack(v))
    cos = float(u @ v)
    assert a.shape == (grouping.SKETCH_SIZE,)
    assert abs(float(a @ b) - cos) < 5 * (2 / 256) ** 0.5
    assert abs(float(a @ a) - 1) < 5 * (2 / 256) ** 0.5


def test_a_small_update_is_its_own_sketch():
    sketch = grouping.sketch(stack(torch.tensor([3.0, 0.0, 4.0, 0.0])))
    assert sketch[:4].tolist() == [3.0, 0.0, 4.0, 0.0] and not sketch[4:].any()
    assert not grouping.sketch(stack(torch.zeros(4))).any()  # that of a free rider


def test_no_sketch_is_longer_than_twice_the_median():
    lengths = torch.tensor([0.0, 1.0, 2.0, 3.9, 1e6])
    clipped = grouping.clip_lengths(lengths[:, None] * torch.eye(5, 256))
    assert torch.allclose(clipped.norm(dim=1), torch.tensor([0.0, 1.0, 2.0, 3.9, 4.0]))


def test_silhouette_by_hand():
    """0, 1 | 10, 11: a = 1; b is 10.5 for the outer and 9.5 for the inner ones."""
    x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    expect = (9.5 / 10.5 + 8.5 / 9.5) / 2
    assert grouping.silhouette(x, torch.tensor([0, 0, 1, 1])) == pytest.approx(expect)


def test_silhouette_of_an_agent_alone_in_its_group_by_hand():
    """0, 1 | 10: a = 1 for all; b is 10, 9, 9.5."""
    x = torch.tensor([[0.0], [1.0], [10.0]])
    expect = (9 / 10 + 8 / 9 + 8.5 / 9.5) / 3
    assert grouping.silhouette(x, torch.tensor([0, 0, 1])) == pytest.approx(expect)
    assert grouping.silhouette(x, torch.tensor([0, 1, 2])) == 0
    assert grouping.silhouette(x, torch.tensor([0, 0, 0])) == 0


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 2), min_size=9, max_size=20), st.integers(0, 2**30))
def test_silhouette_of_larger_groups_is_that_of_scikit_learn(group, seed):
    group = torch.tensor([0, 0, 1, 1, 2, 2, *group])
    x = torch.randn(len(group), 3, generator=torch.Generator().manual_seed(seed))
    assert grouping.silhouette(x, group) == pytest.approx(silhouette_score(x.numpy(), group.numpy()), abs=1e-5)


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 2**30))
def test_distant_groups_are_found_in_any_order(extra, seed):
    true = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, *extra])
    rng = torch.Generator().manual_seed(seed)
    points = torch.eye(4, 256)[true] + 0.01 * torch.randn(len(true), 256, generator=rng)
    assert adjusted_rand_index(grouping.k_means(points, 4), true) == 1
    assert adjusted_rand_index(grouping.find_groups(points, 10), true) == 1
    sizes = torch.bincount(grouping.k_means(points, 4))
    assert (sizes.diff() <= 0).all()  # the largest first


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(st.integers(1, 30), st.integers(0, 2**30))
def test_agents_without_clear_groups_are_one_group(C, seed):
    points = torch.randn(C, 256, generator=torch.Generator().manual_seed(seed))
    assert not grouping.find_groups(points / points.norm(dim=1, keepdim=True), 10).any()


def test_equal_updates_are_one_group():
    assert grouping.find_groups(torch.ones(8, 256), 10).tolist() == [0] * 8
    assert grouping.k_means(torch.ones(8, 256), 3).tolist() == [0] * 8  # also if three groups are asked for


def test_fewer_agents_than_groups():
    assert sorted(grouping.k_means(torch.eye(2, 256), 5).tolist()) == [0, 1]


def trained(algorithm, fed, rounds, seed=0, **options):
    setup = Setup.of(algorithm, fed, rounds, seed=seed, **options)
    *_, last = run(setup, eval_every=0)
    return setup.engine.labels(algorithm, last.server, last.states), last


@pytest.mark.parametrize("turns", [[0] * 8, [0] * 7 + [2], [0] * 7 + [1, 1, 2], [0, 0, 1, 1, 2, 2, 3, 3]])
def test_auto_finds_as_many_clusters_as_there_are(turns):
    fed = ff.data.rotated_digits(turns=turns)
    pi, last = trained(ff.Focus(M="auto", init="split"), fed, 6)
    assert int(last.server["split"]["in_use"].sum()) == len(set(turns))
    assert all(len(v) == len(set(turns)) for v in last.server["w"].values())  # no unused model
    assert adjusted_rand_index(pi.argmax(1), fed.clusters) == 1 or len(set(turns)) == 1
    assert torch.allclose(pi.sum(1), torch.ones(fed.E))


def test_the_warm_up_is_fedavg_if_agents_have_equal_sizes():
    fed = ff.data.synthetic(E=4, n=50)
    train = ff.Train(lr=0.05, steps=3)
    _, a = trained(ff.Focus(M=2, init="split", warmup=5), fed, 4, train=train)
    _, b = trained(ff.FedAvg(), fed, 4, train=train)
    assert torch.allclose(a.server["w"]["1.weight"][0], b.server["w"]["1.weight"][0], atol=1e-6)
    assert a.server["split"]["in_use"].tolist() == [1, 0]


def test_the_server_sees_sketches_during_the_warm_up_only():
    fed = ff.data.synthetic(E=4, n=50)
    setup = Setup.of(ff.Focus(M=2, init="split", warmup=2), fed, 5)
    server, states = setup.start()
    shapes = []
    for t in range(5):
        replies = setup.engine.round(setup.algorithm, server, states, t, np.arange(4))
        shapes.append({k: list(v.shape) for k, v in replies.each.items()})
        server = setup.algorithm.aggregate(server, replies.add, replies.each, torch.arange(4))
    assert shapes == [{"sketch": [4, 256]}, {"sketch": [4, 256]}, {}, {}, {}]


class OneNetwork:
    """Implements core.Networks with four zeros."""

    def copies(self, M):
        return {"w": torch.zeros(M, 4)}


def after_rounds(warmup, M, cohorts, sketches):
    """The state of the split after rounds in which `cohorts`, out of ten agents, sent their sketches."""
    start = Split(M, warmup)
    server = start.start(OneNetwork(), 10)
    for t, cohort in enumerate(cohorts):
        server = start.aggregate(server, server, {}, {"sketch": sketches(t)[cohort]}, torch.tensor(cohort))
    return server["split"]


def test_differences_between_agents_add_up_over_the_warm_up_and_noise_does_not():
    """Two groups at distance 2, noise of length 8: one round shows nothing. After 100: distance 200, noise 80."""
    group = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])

    def sketches(t):
        noise = 0.5 * torch.randn(10, 256, generator=torch.Generator().manual_seed(t))
        return noise + 2 * group[:, None] * torch.eye(1, 256)

    groups = {
        rounds: after_rounds(rounds, 2, [list(range(10))] * rounds, sketches)["first_labels"].argmax(1)
        for rounds in (1, 100)
    }
    assert adjusted_rand_index(groups[100], group) == 1
    assert adjusted_rand_index(groups[1], group) < 0.5


def test_each_round_adds_differences_from_the_mean_with_the_same_weight():
    """By hand: lengths 0 to 9 (median, the lower one: 4; bound 8), mean (0 + ... + 8 + 8) / 10 = 4.4; a second
    round without agent 9, all a hundred times as long: mean 400."""
    first_round = torch.arange(10.0)[:, None] * torch.eye(1, 256)
    server = after_rounds(5, 2, [list(range(10)), list(range(9))], lambda t: first_round * 100**t)
    first = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 8]) - 4.4
    second = np.append(np.arange(9) - 4.0, 0)
    expect = first / np.linalg.norm(first) + second / np.linalg.norm(second)
    assert server["sketches"][:, 0].tolist() == pytest.approx(expect.tolist(), abs=1e-5)
    assert server["senders"].tolist() == list(range(10))


def test_clear_groups_of_the_last_update_are_used():
    """With bad first weights, the first updates differ by chance, not by group."""
    group = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    by_chance = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1, 0, 1])
    per_round = [by_chance, by_chance, group]
    server = after_rounds(
        3, 2, [list(range(10))] * 3, lambda t: (2.0 * per_round[t][:, None] - 1) * torch.eye(1, 256)
    )
    assert adjusted_rand_index(server["first_labels"].argmax(1), group) == 1


def test_an_agent_that_misses_a_round_of_the_warm_up_still_gets_a_group():
    group = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    cohorts = [list(range(10)), list(range(8)), [0, 1, 6]]  # the last round is too small to count
    server = after_rounds(3, 2, cohorts, lambda t: (2.0 * group[:, None] - 1) * torch.eye(1, 256))
    assert int(server["split_round"]) == 3
    assert server["first_labels"].argmax(1).tolist() == group.tolist()


def test_the_number_of_rounds_of_an_agent_does_not_decide_its_group():
    """Groups of seven, two and one, no noise. Agent 8 participated once: its sum is a third as long."""
    group = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1, 1, 2])
    cohorts = [[e for e in range(10) if e not in away] for away in ([0, 8], [1, 8], [2])]
    server = after_rounds(3, 3, cohorts, lambda t: torch.eye(3, 256)[group])
    assert adjusted_rand_index(server["first_labels"].argmax(1), group) == 1


def test_the_split_does_not_wait_for_absent_agents():
    """Seven of ten agents participate in every round. One more round shows that no other agent comes."""
    group = torch.tensor([0, 0, 0, 0, 1, 1, 1, 0, 0, 0])
    server = after_rounds(3, 2, [list(range(7))] * 4, lambda t: (2.0 * group[:, None] - 1) * torch.eye(1, 256))
    assert int(server["split_round"]) == 4
    assert adjusted_rand_index(server["first_labels"][:7].argmax(1), group[:7]) == 1
    three = after_rounds(3, 2, [[0, 1, 2]] * 6, lambda t: torch.eye(1, 256).expand(10, -1))
    assert int(three["split_round"]) == 0  # that three of ten come may be chance


@pytest.mark.parametrize("fraction", [1.0, 0.3])
def test_one_cluster_is_fedavg(fraction):
    fed, train = ff.data.synthetic(E=10, n=50), ff.Train(lr=0.05, steps=3)
    _, a = trained(ff.Focus(M=1), fed, 8, train=train, fraction=fraction)
    _, b = trained(ff.FedAvg(), fed, 8, train=train, fraction=fraction)
    assert torch.allclose(a.server["w"]["1.weight"][0], b.server["w"]["1.weight"][0], atol=1e-6)


@pytest.mark.parametrize("lr", [100.0, 1e6])
def test_divergence_in_the_warm_up_is_reported(lr):
    with pytest.raises(Diverged):
        trained(ff.Focus(M=2), ff.data.synthetic(E=6, n=50), 6, train=ff.Train(lr=lr, steps=10))


def test_secure_sums_refuse_sketches():
    setup = Setup.of(ff.Focus(M=2, init="split"), ff.data.synthetic(E=4, n=50), 5)
    with pytest.raises(InputError, match="sketch"):
        require_sums_only(setup.algorithm, setup.start()[0], setup.task)


@pytest.mark.slow
@pytest.mark.parametrize("fraction, M", [(0.3, 3), (0.3, "auto"), (0.1, 3)])
def test_with_few_agents_per_round_the_split_waits_for_most_agents(fraction, M):
    """It waits for 20 of 24. The others get no first label; they find their cluster by their losses."""
    fed = ff.data.rotated_digits(turns=[0] * 8 + [1] * 8 + [2] * 8)
    pi, last = trained(ff.Focus(M=M, init="split"), fed, 60, fraction=fraction)
    assert last.server["split"]["split_round"] > 5
    assert 20 <= (last.server["split"]["first_labels"] > 0).any(1).sum() < 24
    assert adjusted_rand_index(pi.argmax(1), fed.clusters) == 1


def test_the_shared_model_does_not_change_while_the_split_waits():
    fed = ff.data.synthetic(E=10, n=50)
    setup = Setup.of(ff.Focus(M=2, init="split"), fed, 30, fraction=0.2)
    models = [done.server["w"]["1.weight"][0] for done in run(setup, eval_every=0)]
    split_round = next(
        t for t, done in enumerate(run(setup, eval_every=0), 1) if int(done.server["split"]["split_round"])
    )
    same = [torch.equal(a, b) for a, b in pairwise(models)]
    assert same[:split_round] == [False] + [True] * (split_round - 3) + [False, False]


def test_the_split_does_not_wait_forever():
    """Only two of ten agents ever answer."""
    start = Split(M=2, warmup=3)
    server = start.start(OneNetwork(), 10)
    while not start.is_split(server):
        server = start.aggregate(server, server, {}, {"sketch": torch.eye(2, 256)}, torch.tensor([3, 5]))
    assert int(server["split"]["split_round"]) == 3 + split.MAX_WAIT
    assert (server["split"]["first_labels"] > 0).any(1).nonzero().flatten().tolist() == [3, 5]


@pytest.mark.slow
def test_a_new_agent_is_assigned_and_predicts():
    fed = ff.data.rotated_digits()
    result = ff.fit(ff.Focus(M="auto", init="split"), fed, rounds=20, bayes="agent")
    newcomer = result.assign(*fed.train(9))
    assert int(newcomer.pi.argmax()) == int(result.clusters[9])
    assert newcomer.predict(fed.test(9).x).shape == (len(fed.test(9).y), 10)


@pytest.mark.slow
@pytest.mark.parametrize("forget, moves", [(1.0, False), (0.5, True)])
def test_forgetting_lets_an_agent_move_when_its_data_changes(forget, moves):
    """One agent rotates its digits after 40 rounds. Its old label holds 40 rounds of evidence, or with forget = 0.5
    two. With 40, its old model learns the new data before the label changes."""
    before = ff.data.rotated_digits(turns=[0, 0, 0, 0, 1, 1, 1, 1])
    after = ff.data.rotated_digits(turns=[0, 0, 0, 1, 1, 1, 1, 1])
    algorithm = ff.Focus(M=2, init="split", forget=forget)
    first, second = (Setup.of(algorithm, fed, 100) for fed in (before, after))
    server, states = first.start()
    for t in range(60):
        setup = first if t < 40 else second
        replies = setup.engine.round(algorithm, server, states, t, np.arange(8))
        server = algorithm.aggregate(server, replies.add, replies.each, torch.arange(8))
    pi = second.engine.labels(algorithm, server, states).argmax(1)
    assert (pi[3] == pi[4]) == moves


@pytest.mark.parametrize(
    "options",
    [
        {"M": "auto", "init": "tied"},
        {"M": "many"},
        {"warmup": 0},
        {"forget": 0.0},
        {"forget": 1.5},
        {"init": "random"},
    ],
)
def test_invalid_options_are_refused(options):
    with pytest.raises(InputError, match=f"focus.{next(iter(options))}"):
        ff.Focus(**options)
