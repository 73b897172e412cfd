"""The start of FOCUS by the agents' updates: sketches, groups, how many, and what becomes of them in a run."""

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
from focusfl.flower.protocol.secure_round import refuse_if_not_a_sum
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
    assert a.shape == (grouping.SIZE,)
    assert abs(float(a @ b) - cos) < 5 * (2 / 256) ** 0.5
    assert abs(float(a @ a) - 1) < 5 * (2 / 256) ** 0.5


def test_a_small_update_is_its_own_sketch():
    said = grouping.sketch(stack(torch.tensor([3.0, 0.0, 4.0, 0.0])))
    assert said[:4].tolist() == [3.0, 0.0, 4.0, 0.0] and not said[4:].any()
    assert not grouping.sketch(stack(torch.zeros(4))).any()  # a free rider's


def test_no_sketch_is_longer_than_twice_the_median():
    lengths = torch.tensor([0.0, 1.0, 2.0, 3.9, 1e6])
    found = grouping.bounded(lengths[:, None] * torch.eye(5, 256))
    assert torch.allclose(found.norm(dim=1), torch.tensor([0.0, 1.0, 2.0, 3.9, 4.0]))


def test_the_silhouette_worked_out_by_hand():
    """0, 1 | 10, 11: a = 1; b is 10.5 for the outer and 9.5 for the inner ones."""
    x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    expect = (9.5 / 10.5 + 8.5 / 9.5) / 2
    assert grouping.silhouette(x, torch.tensor([0, 0, 1, 1])) == pytest.approx(expect)


def test_a_lone_agent_is_as_close_as_the_others_are_to_theirs():
    """0, 1 | 10: a = 1 for all; b is 10, 9, 9.5."""
    x = torch.tensor([[0.0], [1.0], [10.0]])
    expect = (9 / 10 + 8 / 9 + 8.5 / 9.5) / 3
    assert grouping.silhouette(x, torch.tensor([0, 0, 1])) == pytest.approx(expect)
    assert grouping.silhouette(x, torch.tensor([0, 1, 2])) == 0
    assert grouping.silhouette(x, torch.tensor([0, 0, 0])) == 0


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 2), min_size=9, max_size=20), st.integers(0, 2**30))
def test_without_lone_agents_it_is_scikit_learns(group, seed):
    group = torch.tensor([0, 0, 1, 1, 2, 2, *group])
    x = torch.randn(len(group), 3, generator=torch.Generator().manual_seed(seed))
    assert grouping.silhouette(x, group) == pytest.approx(silhouette_score(x.numpy(), group.numpy()), abs=1e-5)


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 2**30))
def test_groups_far_apart_are_found_whatever_their_order(extra, seed):
    kinds = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, *extra])
    rng = torch.Generator().manual_seed(seed)
    points = torch.eye(4, 256)[kinds] + 0.01 * torch.randn(len(kinds), 256, generator=rng)
    assert adjusted_rand_index(grouping.groups(points, 4), kinds) == 1
    assert adjusted_rand_index(grouping.how_many(points, 10), kinds) == 1
    sizes = torch.bincount(grouping.groups(points, 4))
    assert (sizes.diff() <= 0).all()  # the largest first


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(st.integers(1, 30), st.integers(0, 2**30))
def test_agents_without_groups_stay_together(C, seed):
    points = torch.randn(C, 256, generator=torch.Generator().manual_seed(seed))
    assert not grouping.how_many(points / points.norm(dim=1, keepdim=True), 10).any()


def test_the_same_update_from_all_is_one_group():
    assert not grouping.how_many(torch.ones(8, 256), 10).any()
    assert set(grouping.groups(torch.ones(8, 256), 3).tolist()) <= {0, 1, 2}
    assert grouping.groups(torch.eye(2, 256), 5).tolist() in ([0, 1], [1, 0])  # fewer agents than groups


def found(algorithm, fed, rounds, seed=0, **options):
    setup = Setup.of(algorithm, fed, rounds, seed=seed, **options)
    *_, last = run(setup, eval_every=0)
    return setup.engine.labels(algorithm, last.server, last.states), last


@pytest.mark.parametrize("turns", [[0] * 8, [0] * 7 + [2], [0] * 7 + [1, 1, 2], [0, 0, 1, 1, 2, 2, 3, 3]])
def test_auto_finds_as_many_clusters_as_there_are(turns):
    fed = ff.data.rotated_digits(turns=turns)
    pi, last = found(ff.Focus(M="auto", init="split"), fed, 6)
    assert int(last.server["split"]["in_use"].sum()) == len(set(turns))
    assert all(len(v) == len(set(turns)) for v in last.server["w"].values())  # no model that nobody uses
    assert adjusted_rand_index(pi.argmax(1), fed.clusters) == 1 or len(set(turns)) == 1
    assert torch.allclose(pi.sum(1), torch.ones(fed.E))


def test_the_warm_up_is_fedavg_of_equal_agents():
    fed = ff.data.synthetic(E=4, n=50)
    train = ff.Train(lr=0.05, steps=3)
    _, a = found(ff.Focus(M=2, init="split", warmup=5), fed, 4, train=train)
    _, b = found(ff.FedAvg(), fed, 4, train=train)
    assert torch.allclose(a.server["w"]["1.weight"][0], b.server["w"]["1.weight"][0], atol=1e-6)
    assert a.server["split"]["in_use"].tolist() == [1, 0]


def test_the_server_sees_sketches_during_the_warm_up_only():
    fed = ff.data.synthetic(E=4, n=50)
    setup = Setup.of(ff.Focus(M=2, init="split", warmup=2), fed, 5)
    server, states = setup.start()
    shown = []
    for t in range(5):
        replies = setup.engine.round(setup.algorithm, server, states, t, np.arange(4))
        shown.append({k: list(v.shape) for k, v in replies.each.items()})
        server = setup.algorithm.aggregate(server, replies.add, replies.each, torch.arange(4))
    assert shown == [{"sketch": [4, 256]}, {"sketch": [4, 256]}, {}, {}, {}]


class OneNetwork:
    """core.Networks for a start that only counts."""

    def copies(self, M):
        return {"w": torch.zeros(M, 4)}


def after_rounds(warmup, M, cohorts, sketches):
    """The server's part of the start after rounds in which `cohorts`, out of ten agents, sent their sketches."""
    start = Split(M, warmup)
    server = start.start(OneNetwork(), 10)
    for t, cohort in enumerate(cohorts):
        server = start.aggregate(server, server, {}, {"sketch": sketches(t)[cohort]}, torch.tensor(cohort))
    return server["split"]


def test_what_sets_agents_apart_adds_up_over_the_warm_up_and_noise_does_not():
    """Two kinds 2 apart, noise 8 long: one round shows nothing. After 100, 200 apart, noise 80 long."""
    kind = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])

    def said(t):
        noise = 0.5 * torch.randn(10, 256, generator=torch.Generator().manual_seed(t))
        return noise + 2 * kind[:, None] * torch.eye(1, 256)

    right = {
        rounds: after_rounds(rounds, 2, [list(range(10))] * rounds, said)["first_labels"].argmax(1)
        for rounds in (1, 100)
    }
    assert adjusted_rand_index(right[100], kind) == 1
    assert adjusted_rand_index(right[1], kind) < 0.5


def test_the_sum_is_of_distances_to_the_mean_each_round_at_the_same_weight():
    """By hand: lengths 0 to 9 (median, the lower one: 4; bound 8), mean (0 + ... + 8 + 8) / 10 = 4.4; a second
    round without agent 9, all a hundred times as long: mean 400."""
    said = torch.arange(10.0)[:, None] * torch.eye(1, 256)
    server = after_rounds(5, 2, [list(range(10)), list(range(9))], lambda t: said * 100**t)
    first = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 8]) - 4.4
    second = np.append(np.arange(9) - 4.0, 0)
    expect = first / np.linalg.norm(first) + second / np.linalg.norm(second)
    assert server["sketches"][:, 0].tolist() == pytest.approx(expect.tolist(), abs=1e-5)
    assert server["senders"].tolist() == list(range(10))


def test_clear_groups_of_the_last_update_count_whatever_came_before():
    """First weights far off: the first updates differ by what an agent happens to hold, not by its kind."""
    kind = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    by_chance = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1, 0, 1])
    said = [by_chance, by_chance, kind]
    server = after_rounds(3, 2, [list(range(10))] * 3, lambda t: (2.0 * said[t][:, None] - 1) * torch.eye(1, 256))
    assert adjusted_rand_index(server["first_labels"].argmax(1), kind) == 1


def test_an_agent_that_misses_a_round_of_the_warm_up_has_a_group_all_the_same():
    kind = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    cohorts = [list(range(10)), list(range(8)), [0, 1, 6]]  # the last round is too small to count
    server = after_rounds(3, 2, cohorts, lambda t: (2.0 * kind[:, None] - 1) * torch.eye(1, 256))
    assert int(server["split_round"]) == 3
    assert server["first_labels"].argmax(1).tolist() == kind.tolist()


def test_an_agent_heard_once_is_no_other_kind_than_one_heard_thrice():
    """Seven, two and one of a kind, no noise; of the two, agent 8 was there once. Its sum is a third as long."""
    kind = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1, 1, 2])
    cohorts = [[e for e in range(10) if e not in away] for away in ([0, 8], [1, 8], [2])]
    server = after_rounds(3, 3, cohorts, lambda t: torch.eye(3, 256)[kind])
    assert adjusted_rand_index(server["first_labels"].argmax(1), kind) == 1


def test_who_is_away_is_not_waited_for():
    """Seven of ten are there, in every round; the other three join later. One round shows that nobody new comes."""
    kind = torch.tensor([0, 0, 0, 0, 1, 1, 1, 0, 0, 0])
    server = after_rounds(3, 2, [list(range(7))] * 4, lambda t: (2.0 * kind[:, None] - 1) * torch.eye(1, 256))
    assert int(server["split_round"]) == 4
    assert adjusted_rand_index(server["first_labels"][:7].argmax(1), kind[:7]) == 1
    few = after_rounds(3, 2, [[0, 1, 2]] * 6, lambda t: torch.eye(1, 256).expand(10, -1))
    assert int(few["split_round"]) == 0  # three of ten may be chance


@pytest.mark.parametrize("fraction", [1.0, 0.3])
def test_one_cluster_is_fedavg(fraction):
    fed, train = ff.data.synthetic(E=10, n=50), ff.Train(lr=0.05, steps=3)
    _, a = found(ff.Focus(M=1), fed, 8, train=train, fraction=fraction)
    _, b = found(ff.FedAvg(), fed, 8, train=train, fraction=fraction)
    assert torch.allclose(a.server["w"]["1.weight"][0], b.server["w"]["1.weight"][0], atol=1e-6)


@pytest.mark.parametrize("lr", [100.0, 1e6])
def test_training_that_diverges_in_the_warm_up_is_said_to(lr):
    with pytest.raises(Diverged):
        found(ff.Focus(M=2), ff.data.synthetic(E=6, n=50), 6, train=ff.Train(lr=lr, steps=10))


def test_secure_sums_refuse_what_shows_a_sketch():
    setup = Setup.of(ff.Focus(M=2, init="split"), ff.data.synthetic(E=4, n=50), 5)
    with pytest.raises(InputError, match="sketch"):
        refuse_if_not_a_sum(setup.algorithm, setup.start()[0], setup.task)


@pytest.mark.slow
@pytest.mark.parametrize("fraction, M", [(0.3, 3), (0.3, "auto"), (0.1, 3)])
def test_with_few_agents_a_round_the_split_waits_for_most_of_them(fraction, M):
    """Until 20 of 24 are heard. The others get no first label; they find their cluster by their losses."""
    fed = ff.data.rotated_digits(turns=[0] * 8 + [1] * 8 + [2] * 8)
    pi, last = found(ff.Focus(M=M, init="split"), fed, 60, fraction=fraction)
    assert last.server["split"]["split_round"] > 5
    assert 20 <= (last.server["split"]["first_labels"] > 0).any(1).sum() < 24
    assert adjusted_rand_index(pi.argmax(1), fed.clusters) == 1


def test_while_it_waits_the_shared_model_stays():
    fed = ff.data.synthetic(E=10, n=50)
    setup = Setup.of(ff.Focus(M=2, init="split"), fed, 30, fraction=0.2)
    models = [done.server["w"]["1.weight"][0] for done in run(setup, eval_every=0)]
    parted = next(
        t for t, done in enumerate(run(setup, eval_every=0), 1) if int(done.server["split"]["split_round"])
    )
    same = [torch.equal(a, b) for a, b in pairwise(models)]
    assert same[:parted] == [False] + [True] * (parted - 3) + [False, False]


def test_it_does_not_wait_forever():
    """Two of ten agents answer, ever."""
    start = Split(2, warmup=3)
    server = start.start(OneNetwork(), 10)
    while not start.is_split(server):
        server = start.aggregate(server, server, {}, {"sketch": torch.eye(2, 256)}, torch.tensor([3, 5]))
    assert int(server["split"]["split_round"]) == 3 + split.PATIENCE
    assert (server["split"]["first_labels"] > 0).any(1).nonzero().flatten().tolist() == [3, 5]


def test_a_newcomer_is_assigned_and_predicts():
    fed = ff.data.rotated_digits()
    result = ff.fit(ff.Focus(M="auto", init="split"), fed, rounds=20, bayes="agent")
    guest = result.assign(*fed.train(9))
    assert int(guest.pi.argmax()) == int(result.clusters[9])
    assert guest.predict(fed.test(9).x).shape == (len(fed.test(9).y), 10)


@pytest.mark.parametrize("forget, moves", [(1.0, False), (0.5, True)])
def test_forgetting_lets_an_agent_whose_data_change_move(forget, moves):
    """One agent turns its digits after 40 rounds. Its old label is worth 40 rounds of evidence, or with forget =
    0.5 two; in 40 rounds its old model would learn the new data before the label gives way."""
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
def test_options_that_make_no_sense(options):
    with pytest.raises(InputError):
        ff.Focus(**options)
