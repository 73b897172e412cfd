"""Clusters that FOCUS with M = "auto" drops or joins while it trains."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import focusfl as ff
from focusfl.algorithms.focus import live, merge, split
from focusfl.core import one_hot
from focusfl.fairness.metrics import adjusted_rand_index
from focusfl.run.training import Setup, labels, run


def parted(E=4, M=3, size=2):
    """A server right after the split: models 0, 1, 2, ... times (1, 1)."""
    w = {"w": torch.arange(float(M))[:, None].expand(M, size).clone()}
    server = live.begin(w, E, M) | merge.begin(M)
    return {**server, "t": torch.tensor(4), "parted": torch.tensor(4), "live": torch.ones(M, dtype=torch.long)}


def test_an_agent_agrees_with_a_model_that_keeps_half_of_its_gain():
    """Before 1.0, own 0.2: a gain of 0.8; the others may be 0.4 worse, at most."""
    said = merge.votes(
        parted(), {"before": torch.tensor(1.0)}, torch.tensor([1.0, 0, 0]), torch.tensor([0.2, 0.59, 0.61])
    )
    assert said["agree"].tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert said["voters"].tolist() == said["held"].tolist() == [1, 0, 0]


def test_who_never_saw_the_shared_model_does_not_vote():
    said = merge.votes(parted(), merge.enrolled(), torch.tensor([0.5, 0.5, 0]), torch.tensor([0.2, 0.2, 0.2]))
    assert not said["agree"].any() and not said["voters"].any() and said["held"].tolist() == [0.5, 0.5, 0]


def sums(agree, held=(2.0, 1.0, 1.0)):
    held = torch.tensor(held)
    return {"held": held, "voters": held, "agree": torch.tensor(agree) * held[:, None]}


AGREE = [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]


def test_two_clusters_that_agree_become_one_and_their_labels_add_up():
    server, rounds = parted(), 0
    while int(server["live"].sum()) == 3:
        server = merge.settle(server, sums(AGREE), torch.arange(4))
        rounds += 1
    assert rounds == merge.SETTLE  # four agents a round of four
    assert server["live"].tolist() == [1, 0, 1] and server["home"].tolist() == [0, 0, 2]
    assert torch.allclose(server["w"]["w"][0], torch.tensor(1 / 3))  # two agents at 0, one at 1
    state = {"log_pi": torch.tensor([0.5, 0.3, 0.2]).log(), "told": torch.tensor(1)}
    view = live.view(server, torch.tensor(0))
    assert torch.allclose(live.labels(view, state).exp(), torch.tensor([0.8, 0.2]))
    late = {"log_pi": torch.zeros(3), "told": torch.tensor(0)}  # told its first label after the two were joined
    view["given"] = live.SURE * one_hot(torch.tensor(1), 3)
    assert live.labels(view, late).exp()[0] > 0.9999


def test_a_cluster_fades_by_how_often_agents_take_part():
    """One of four a round: what fades by 0.9 a round where all take part falls below 0.01 in 4 x 43.7 rounds."""
    server, alone = parted(), sums(torch.eye(3).tolist(), held=(1.0, 1.0, 0.0))
    for t in range(175):
        assert int(server["live"].sum()) == 3, t
        server = merge.settle(server, alone, torch.tensor([t % 4]))
    assert int(server["live"].sum()) == 2


def test_one_sided_agreement_joins_nothing():
    server = parted()
    for _ in range(20):
        server = merge.settle(server, sums([[1.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), torch.arange(4))
    assert server["live"].tolist() == [1, 1, 1]


def test_a_cluster_that_nobody_holds_is_dropped_but_not_one_whose_agents_are_away_for_a_while():
    server, away = parted(), parted()
    for t in range(44):
        alone = sums(torch.eye(3).tolist(), (3.0, 1.0, 0.0))
        server = merge.settle(server, alone, torch.arange(4))
        away = merge.settle(away, alone if t % 20 else sums(torch.eye(3).tolist()), torch.arange(4))
    assert server["live"].tolist() == [1, 1, 0] and away["live"].tolist() == [1, 1, 1]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-50, 50), min_size=4, max_size=4), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_labels_stay_labels_whatever_was_joined(log_pi, into):
    """home: cluster m's agents are now in into[m] <= m, or where that one went."""
    home = list(range(4))
    for m in range(1, 4):
        home[m] = home[min(into[m], m)]
    server = parted(M=4) | {"home": torch.tensor(home), "given": torch.zeros(4)}
    server["live"] = torch.tensor([int(m in home) for m in range(4)])
    pi = torch.tensor(log_pi).softmax(0)
    found = live.labels(server, {"log_pi": pi.log().clamp_min(-100), "told": torch.tensor(1)}).exp()
    wanted = torch.zeros(4).index_add(0, torch.tensor(home), pi)[live.which(server)]
    assert torch.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("turns", [[0] * 10, [0] * 7 + [1, 1, 2]])
@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_two_clusters_too_many_are_joined_to_the_true_ones(turns, engine, monkeypatch):
    fed, K = ff.data.rotated_digits(turns=turns), len(set(turns))
    monkeypatch.setattr(split, "how_many", lambda sketches: split.groups(sketches, K + 2))
    algorithm, counts = ff.Focus(M="auto", init="split"), []
    for done in run(Setup.of(algorithm, fed, 12, engine=engine), eval_every=0):
        counts.append(int(done.server["live"].sum()))
    found = labels(algorithm, done.server, done.states, fed.E).argmax(1)
    assert max(counts) == K + 2 and counts[-1] == K
    assert adjusted_rand_index(found, fed.clusters) == 1


def test_a_run_that_joined_clusters_resumes(tmp_path, monkeypatch):
    fed = ff.data.rotated_digits(turns=[0] * 6)
    monkeypatch.setattr(split, "how_many", lambda sketches: split.groups(sketches, 3))
    setup = Setup.of(ff.Focus(M="auto", init="split"), fed, 12)
    *_, whole = run(setup, eval_every=0)
    for done in run(setup, tmp_path, eval_every=0, checkpoint_every=1):
        if done.t == 10:  # two joined, or all three
            break
    *_, resumed = run(setup, tmp_path, resume=True, eval_every=0)
    for k, v in whole.server["w"].items():
        assert torch.equal(v, resumed.server["w"][k])
    assert torch.equal(whole.states["log_pi"], resumed.states["log_pi"])
