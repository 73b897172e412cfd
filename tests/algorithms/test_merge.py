"""FOCUS with M = "auto" drops or merges clusters during training."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import focusfl as ff
from focusfl.algorithms.focus import grouping, merge
from focusfl.algorithms.focus.merge import AutoSplit
from focusfl.algorithms.focus.split import HEAD_START
from focusfl.core import one_hot
from focusfl.fairness.metrics import adjusted_rand_index
from focusfl.run.loop import run
from focusfl.run.setup import Setup


class TwoWeights:
    """Implements core.Networks with one model, (0, 0)."""

    def copies(self, M):
        return {"w": torch.zeros(M, 2)}


def after_split(E=4, M=3):
    """The start, and a server right after the split: models 0, 1, 2, ... times (1, 1)."""
    start = AutoSplit(M, warmup=3)
    server = start.start(TwoWeights(), E)
    split = {"t": torch.tensor(4), "split_round": torch.tensor(4), "in_use": torch.ones(M, dtype=torch.long)}
    w = {"w": torch.arange(float(M))[:, None].expand(M, 2).clone()}
    return start, {**server, "w": w, "split": server["split"] | split}


def votes(shared_loss, pi, losses):
    start, server = after_split()
    state = {"merge": {"shared_loss": torch.tensor(shared_loss)}}
    return start.upload(server, state, torch.tensor(pi), torch.tensor(losses), {}, None).add


def test_an_agent_accepts_a_model_that_keeps_half_of_its_gain():
    """The loss fell from 1.0 to 0.2, a gain of 0.8; other models may be worse by at most 0.4."""
    sent = votes(1.0, [1.0, 0, 0], [0.2, 0.59, 0.61])
    assert sent["agree"].tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert sent["voters"].tolist() == sent["held"].tolist() == [1, 0, 0]


def test_an_agent_that_never_saw_the_shared_model_does_not_vote():
    sent = votes(-1.0, [0.5, 0.5, 0], [0.2, 0.2, 0.2])
    assert not sent["agree"].any() and not sent["voters"].any() and sent["held"].tolist() == [0.5, 0.5, 0]


def sums(agree, held=(2.0, 1.0, 1.0)):
    held = torch.tensor(held)
    return {"held": held, "voters": held, "agree": torch.tensor(agree) * held[:, None]}


AGREE = [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]


def settle(start, server, add, cohort):
    return start.aggregate(server, server, add, {}, torch.as_tensor(cohort))


def in_use(server):
    return server["split"]["in_use"].tolist()


def test_two_clusters_that_agree_are_merged_and_their_labels_add_up():
    start, server = after_split()
    rounds = 0
    while sum(in_use(server)) == 3:
        server = settle(start, server, sums(AGREE), range(4))
        rounds += 1
    assert rounds == merge.MIN_TURNS  # four agents, all in every round
    assert in_use(server) == [1, 0, 1] and server["merge"]["home"].tolist() == [0, 0, 2]
    assert torch.allclose(server["w"]["w"][0], torch.tensor(1 / 3))  # two agents at 0, one at 1
    state = {"log_pi": torch.tensor([0.5, 0.3, 0.2]).log(), "split": {"has_label": torch.tensor(1)}}
    view = start.downlink(server, torch.tensor(0))
    assert torch.allclose(start.log_labels(view, state).exp(), torch.tensor([0.8, 0.2]))
    late = {
        "log_pi": torch.zeros(3),
        "split": {"has_label": torch.tensor(0)},
    }  # it gets its first label after the merge
    view["split"]["first_labels"] = HEAD_START * one_hot(torch.tensor(1), 3)
    assert start.log_labels(view, late).exp()[0] > 0.9999


def test_a_cluster_fades_by_how_often_agents_participate():
    """One of four agents per round: a factor of 0.9 per turn of all agents falls below 0.01 in 4 x 43.7 rounds."""
    (start, server), alone = after_split(), sums(torch.eye(3).tolist(), held=(1.0, 1.0, 0.0))
    for t in range(175):
        assert sum(in_use(server)) == 3, t
        server = settle(start, server, alone, [t % 4])
    assert sum(in_use(server)) == 2


def test_one_sided_agreement_merges_nothing():
    start, server = after_split()
    for _ in range(20):
        server = settle(start, server, sums([[1.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), range(4))
    assert in_use(server) == [1, 1, 1]


def test_a_cluster_without_agents_is_dropped_but_not_if_they_are_away_for_a_while():
    (start, server), (_, away) = after_split(), after_split()
    for t in range(44):
        alone = sums(torch.eye(3).tolist(), (3.0, 1.0, 0.0))
        server = settle(start, server, alone, range(4))
        away = settle(start, away, alone if t % 20 else sums(torch.eye(3).tolist()), range(4))
    assert in_use(server) == [1, 1, 0] and in_use(away) == [1, 1, 1]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-50, 50), min_size=4, max_size=4), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_labels_sum_to_one_after_any_merges(log_pi, into):
    """The agents of cluster m are now in into[m] <= m, or where that cluster was merged."""
    home = list(range(4))
    for m in range(1, 4):
        home[m] = home[min(into[m], m)]
    start, server = after_split(M=4)
    changed = {"in_use": torch.tensor([int(m in home) for m in range(4)]), "first_labels": torch.zeros(4)}
    server |= {"split": server["split"] | changed, "merge": server["merge"] | {"home": torch.tensor(home)}}
    pi = torch.tensor(log_pi).softmax(0)
    state = {"log_pi": pi.log().clamp_min(-100), "split": {"has_label": torch.tensor(1)}}
    expected = torch.zeros(4).index_add(0, torch.tensor(home), pi)[start.in_use(server)]
    assert torch.allclose(start.log_labels(server, state).exp(), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("turns", [[0] * 10, [0] * 7 + [1, 1, 2]])
@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_two_clusters_too_many_are_merged_into_the_true_ones(turns, engine, monkeypatch):
    fed, K = ff.data.rotated_digits(turns=turns), len(set(turns))
    monkeypatch.setattr(grouping, "find_groups", lambda sketches, max_groups: grouping.k_means(sketches, K + 2))
    algorithm, counts = ff.Focus(M="auto", init="split"), []
    setup = Setup.of(algorithm, fed, 12, engine=engine)
    for done in run(setup, eval_every=0):
        counts.append(sum(in_use(done.server)))
    clusters = setup.engine.labels(algorithm, done.server, done.states).argmax(1)
    assert max(counts) == K + 2 and counts[-1] == K
    assert adjusted_rand_index(clusters, fed.clusters) == 1


def test_a_run_with_merged_clusters_resumes(tmp_path, monkeypatch):
    fed = ff.data.rotated_digits(turns=[0] * 6)
    monkeypatch.setattr(grouping, "find_groups", lambda sketches, max_groups: grouping.k_means(sketches, 3))
    setup = Setup.of(ff.Focus(M="auto", init="split"), fed, 12, checkpoint_every=1)
    *_, whole = run(setup, eval_every=0)
    for done in run(setup, tmp_path, eval_every=0):
        if done.t == 10:  # two or all three are merged
            break
    *_, resumed = run(setup, tmp_path, resume=True, eval_every=0)
    for k, v in whole.server["w"].items():
        assert torch.equal(v, resumed.server["w"][k])
    assert torch.equal(whole.states["log_pi"], resumed.states["log_pi"])
