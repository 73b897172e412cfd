"""q-FFL, AFL, Ditto, CGSV and FedProx: facts from their definitions."""

import math

import numpy as np
import pytest
import torch
from helpers.scripted import Scripted, models, one_round
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import nn

import focusfl as ff
from focusfl.algorithms.afl import project
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.errors import Diverged, InputError

every_engine = pytest.mark.parametrize("engine", ["serial", "vectorised"])


def last_round(algorithm, fed, rounds=5, **options):
    *_, done = run(Setup.of(algorithm, fed, rounds, **options))
    return done


def one_weight(*targets):
    """Agents with the examples x = 1, y = target, and one weight that starts at 0."""
    agents = [([[1.0]], [y]) for y in targets]
    network = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(network.weight)
    return ff.Federation.from_agents(agents, test=agents), network


# --- q-FFL


@every_engine
def test_qffl_with_q_0_is_the_plain_mean(ragged, engine):
    train = ff.Train(lr=0.1, steps=3)
    alone = last_round(ff.Local(), ragged, 1, train=train, engine=engine).states["w"]
    shared = last_round(ff.QFFL(q=0.0), ragged, 1, train=train, engine=engine).server["w"]
    for k, v in alone.items():
        assert torch.allclose(shared[k], v.mean(0), atol=1e-6)  # whatever the agents' sizes


def test_qffl_step_of_two_agents_by_hand():
    # w = 1, eta = 0.5: L = 2. Agent 1: F = 4, trained to 0: Dw = 2 (1 - 0) = 2; agent 2: F = 1, to 3: Dw = -4
    # q = 1: Delta = 8 and -4; h = 1 * 4 + 2 * 4 = 12 and 1 * 16 + 2 * 1 = 18; w - 4 / 30
    agents = [Scripted([4.0], move=-1.0, n=7, lr=0.5), Scripted([1.0], move=2.0, n=1, lr=0.5)]
    after, _ = one_round(ff.QFFL(q=1.0), {"w": models([1.0])}, agents)
    assert after["w"]["a"].item() == pytest.approx(1 - 4 / 30, abs=1e-6)


@every_engine
def test_qffl_on_one_weight_by_hand(engine):
    # targets 1 and 4, w = 0, lr 0.1, one step: theta = 0.2 and 0.8, F = 1 and 16, L = 10, Dw = -2 and -8
    # q = 1: Delta = -2 and -128, h = 4 + 10 and 64 + 160: w = 130 / 238
    fed, network = one_weight(1.0, 4.0)
    done = last_round(ff.QFFL(q=1.0), fed, 1, model=network, train=ff.Train(lr=0.1, steps=1), engine=engine)
    assert done.server["w"]["weight"].item() == pytest.approx(130 / 238, abs=1e-5)


@every_engine
def test_qffl_with_losses_after_training_by_hand(engine):
    # as before, but F = (1 - 0.2)^2 = 0.64 and (4 - 0.8)^2 = 10.24:
    # Delta = -1.28 and -81.92, h = 4 + 6.4 and 64 + 102.4: w = 83.2 / 176.8
    fed, network = one_weight(1.0, 4.0)
    train = ff.Train(lr=0.1, steps=1)
    done = last_round(ff.QFFL(q=1.0, at="after"), fed, 1, model=network, train=train, engine=engine)
    assert done.server["w"]["weight"].item() == pytest.approx(83.2 / 176.8, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 10.0])
def test_qffl_converges_to_the_minimum_of_the_sum_of_powers_of_the_losses(q):
    # with one local step it is gradient descent on sum_e F_e^(q+1); scipy finds the minimum independently
    fed = ff.data.synthetic(seed=3, E=4, n=40, d=3)
    train = [fed.train(e) for e in range(4)]
    x, y = [d.x.double().numpy() for d in train], [d.y.double().numpy().ravel() for d in train]

    def losses(w):
        return np.array([np.mean((a @ w - b) ** 2) for a, b in zip(x, y, strict=True)])

    least = minimize(lambda w: (losses(w) ** (q + 1)).sum(), np.zeros(3), tol=1e-12).x
    steps = ff.Train(lr=0.1, steps=1)
    done = last_round(ff.QFFL(q=q), fed, 400, model=nn.Linear(3, 1, bias=False), train=steps)
    assert done.server["w"]["weight"].flatten().numpy() == pytest.approx(least, abs=2e-3)


@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("loss", [0.0, 1e-8, 1.0, 1e6])
def test_qffl_with_losses_of_any_size(q, loss):
    # two equal agents: Delta / h = Dw / (q Dw^2 / F + L), whatever F^q
    agents = [Scripted([loss], move=0.5, lr=0.1)] * 2
    after, _ = one_round(ff.QFFL(q=q), {"w": models([1.0])}, agents)
    Dw, F, L = -5.0, loss + 1e-10, 10.0
    assert after["w"]["a"].item() == pytest.approx(1 - Dw / (q * Dw**2 / F + L), abs=1e-6)


def test_qffl_with_zero_updates_and_zero_losses():
    after, _ = one_round(ff.QFFL(q=20.0), {"w": models([1.0])}, [Scripted([0.0], move=0.0)] * 2)
    assert after["w"]["a"].item() == 1.0


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_qffl_measures_the_step_without_batch_statistics(scale):
    # the norm in h leaves batch statistics out: F = 1, q = 1, L = 1, Dw = 2: h = 4 + 1, whatever the statistics do
    class Moves(Scripted):
        def sgd(self, w, **_):
            return {"a": w["a"] - 2.0, "running_mean": w["running_mean"] + scale}

    w = {"a": torch.zeros(1, 1), "running_mean": torch.zeros(1, 1)}
    after, _ = one_round(ff.QFFL(q=1.0), {"w": w}, [Moves([1.0], lr=1.0)])
    assert after["w"]["a"].item() == pytest.approx(-2 / 5)


# --- AFL


def by_bisection(v):
    """tau with sum max(v + tau, 0) = 1."""
    low, high = -max(v) - 1, 1 - min(v)
    for _ in range(200):
        tau = (low + high) / 2
        low, high = (tau, high) if sum(max(x + tau, 0) for x in v) < 1 else (low, tau)
    return [max(x + tau, 0) for x in v]


@pytest.mark.parametrize(
    ("v", "expected"),
    [
        ([0.5, 0.5, 0.5, 0.5], [0.25] * 4),  # ties
        ([0.9, 0.9, 0.1], [0.5, 0.5, 0.0]),
        ([-1.0, -2.0, -5.0], [1.0, 0.0, 0.0]),  # negatives
        ([-0.25, -0.25], [0.5, 0.5]),
        ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),  # there already
        ([7.0], [1.0]),  # n = 1
        ([-7.0], [1.0]),
        ([0.6, 0.8], [0.4, 0.6]),
    ],
)
def test_projection_by_hand(v, expected):
    assert torch.allclose(project(torch.tensor(v)), torch.tensor(expected), atol=1e-6)


@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=8))
def test_projection_is_the_one_found_by_bisection(v):
    assert torch.allclose(project(torch.tensor(v)), torch.tensor(by_bisection(v)), atol=1e-5)


@every_engine
def test_afl_with_gamma_0_keeps_weights_equal(ragged, engine):
    train = ff.Train(lr=0.1, steps=3)
    done = last_round(ff.AFL(gamma=0.0), ragged, 3, train=train, engine=engine)
    assert torch.allclose(done.server["lam"], torch.full((5,), 0.2))
    plain = last_round(ff.QFFL(q=0.0), ragged, 3, train=train, engine=engine)
    for k, v in done.server["w"].items():
        assert torch.allclose(v, plain.server["w"][k], atol=1e-5)


def test_afl_round_by_hand():
    # lam = (1/2, 1/2): w = (1 + 3) / 2 = 2 from the OLD weights; lam + 0.1 (1, 3) = (0.6, 0.8) -> (0.4, 0.6)
    afl, w = ff.AFL(gamma=0.1), models([0.0])
    server = {"w": w, "mean": w, "lam": torch.tensor([0.5, 0.5]), "t": torch.tensor(0)}
    server, _ = one_round(afl, server, [Scripted([1.0], move=1.0, n=9), Scripted([3.0], move=3.0)])
    assert server["w"]["a"].item() == pytest.approx(2.0)
    assert torch.allclose(server["lam"], torch.tensor([0.4, 0.6]))
    # then w = 0.4 (2 + 1) + 0.6 (2 + 3) = 4.2, and the model evaluated is the mean of 2 and 4.2
    server, _ = one_round(afl, server, [Scripted([1.0], move=1.0, n=9), Scripted([3.0], move=3.0)])
    assert server["w"]["a"].item() == pytest.approx(4.2)
    prediction = afl.predict(afl.downlink(server, torch.tensor(0)), {}, lambda w: w["a"].unsqueeze(0))
    assert prediction.item() == pytest.approx(3.1)


@every_engine
@pytest.mark.parametrize(("at", "gap"), [("before", 16 - 1), ("after", 10.24 - 0.64)])
def test_afl_uses_losses_before_or_after_training(at, gap, engine):
    # targets 1 and 4, w = 0, lr 0.1, one step: theta = 0.2 and 0.8; the projection keeps gamma times the gap
    fed, network = one_weight(1.0, 4.0)
    train = ff.Train(lr=0.1, steps=1)
    done = last_round(ff.AFL(at=at), fed, 1, model=network, train=train, engine=engine)
    assert (done.server["lam"][1] - done.server["lam"][0]).item() == pytest.approx(0.01 * gap, abs=1e-6)
    assert done.server["w"]["weight"].item() == pytest.approx(0.5)


@every_engine
def test_afl_evaluates_the_running_mean(ragged, engine):
    seen = []
    for done in run(Setup.of(ff.AFL(), ragged, 4, engine=engine)):
        seen.append(done.server["w"]["1.weight"])
        assert torch.allclose(done.server["mean"]["1.weight"], torch.stack(seen).mean(0), atol=1e-6)
    network = Setup.of(ff.AFL(), ragged, 4).networks.network()
    network.load_state_dict({k: v[0] for k, v in done.server["mean"].items()})
    x, y = ragged.test(2)
    assert torch.allclose(done.scores.loss[2], nn.functional.cross_entropy(network(x), y), atol=1e-5)


@pytest.mark.parametrize("loss", [1e6, 1e30])
def test_afl_with_a_huge_loss_follows_that_agent(loss):
    afl, w = ff.AFL(), models([0.0])
    server = {"w": w, "mean": w, "lam": torch.full((3,), 1 / 3), "t": torch.tensor(0)}
    agents = [Scripted([1.0]), Scripted([loss], move=5.0), Scripted([2.0])]
    server, _ = one_round(afl, server, agents)
    assert server["lam"].tolist() == [0.0, 1.0, 0.0]
    server, _ = one_round(afl, server, agents)
    assert server["w"]["a"].item() == pytest.approx(7 / 3 + 5)


def test_afl_reports_divergence():
    with pytest.raises(Diverged, match=r"train\.lr"):
        ff.fit(ff.AFL(), ff.data.synthetic(seed=0), rounds=40, train=ff.Train(lr=1.2, steps=3), progress=False)


def test_the_weight_of_an_absent_agent_in_afl_changes_only_by_the_projection():
    afl, w = ff.AFL(gamma=0.1), models([0.0])
    server = {"w": w, "mean": w, "lam": torch.tensor([0.25, 0.25, 0.5]), "t": torch.tensor(0)}
    add = {"theta": models([0.25 * 1 + 0.25 * 3]), "lam": torch.tensor(0.5)}  # agents 0 and 1 answered 1 and 3
    after = afl.aggregate(server, add, {"loss": torch.tensor([1.0, 2.0])}, torch.tensor([0, 1]))
    assert after["w"]["a"].item() == pytest.approx(2.0)
    # (0.35, 0.45, 0.5) sums to 1.3, so each loses 0.1
    assert torch.allclose(after["lam"], torch.tensor([0.25, 0.35, 0.4]))


# --- Ditto and FedProx


@every_engine
def test_ditto_with_lambda_0_is_local_training(ragged, engine):
    train = ff.Train(lr=0.1, steps=3, batch=8, momentum=0.5)
    personal = last_round(ff.Ditto(lam=0.0), ragged, 4, train=train, engine=engine).states["v"]
    alone = last_round(ff.Local(), ragged, 4, train=train, engine=engine).states["w"]
    for k, v in alone.items():
        assert torch.allclose(personal[k], v, atol=1e-6)


@every_engine
@pytest.mark.parametrize("lam", [0.5, 6.0, 15.0])
def test_ditto_between_its_own_and_the_shared_optimum(engine, lam):
    # targets 1 and 5; the shared weight goes to the plain mean of the optima, w = 3
    # (v - y)^2 + lam/2 (v - w)^2 is least at v = (2 y + lam w) / (2 + lam): y for lam = 0, near w for a large one
    fed, network = one_weight(1.0, 5.0)
    train = ff.Train(lr=0.1, steps=20)
    done = last_round(ff.Ditto(lam=lam), fed, 40, model=network, train=train, engine=engine)
    expected = torch.tensor([(2 * y + lam * 3) / (2 + lam) for y in (1.0, 5.0)])
    assert torch.allclose(done.states["v"]["weight"].flatten(), expected, atol=1e-3)
    assert done.server["w"]["weight"].item() == pytest.approx(3.0, abs=1e-3)


@every_engine
def test_a_large_pull_keeps_ditto_at_the_shared_model(ragged, engine):
    def distance(lam):
        setup = Setup.of(ff.Ditto(lam=lam), ragged, 1, train=ff.Train(lr=0.01, steps=50), engine=engine)
        w = setup.start()[0]["w"]
        *_, done = run(setup)
        return max((v - w[k]).abs().max().item() for k, v in done.states["v"].items())

    assert distance(99.0) < 0.05 * distance(0.0)


@every_engine
def test_fedprox_with_mu_0_is_fedavg(ragged, engine):
    prox = last_round(ff.FedProx(mu=0.0), ragged, 4, engine=engine).server["w"]
    plain = last_round(ff.FedAvg(), ragged, 4, engine=engine).server["w"]
    assert all(torch.allclose(prox[k], plain[k], atol=1e-6) for k in plain)


@every_engine
@pytest.mark.parametrize("mu", [0.01, 0.1, 1.0])
def test_fedprox_on_one_weight_by_hand(engine, mu):
    # theta <- theta - 0.1 (2 (theta - 1) + mu theta) from 0: a (1 - b^K), a = 2 / (2 + mu), b = 1 - 0.1 (2 + mu)
    fed, network = one_weight(1.0, 1.0)
    train = ff.Train(lr=0.1, steps=7)
    done = last_round(ff.FedProx(mu=mu), fed, 1, model=network, train=train, engine=engine)
    expected = 2 / (2 + mu) * (1 - (1 - 0.1 * (2 + mu)) ** 7)
    assert done.server["w"]["weight"].item() == pytest.approx(expected, abs=1e-6)


# --- CGSV


def cgsv_start(method, E=2, d=2):
    w = {"a": torch.zeros(1, d)}
    return {"w": w, "v": {"a": torch.zeros(E, 1, d)}, "r": torch.zeros(E)}


def test_cgsv_rewards_over_two_rounds():
    method = ff.CGSV(alpha=0.5, beta=1.0, Gamma=1.0)
    server = cgsv_start(method)
    # round 1. Updates of length 1: (0.8, 0.6) and (-1, 0); sizes 3 : 1, so A = (0.35, 0.45)
    agents = [Scripted(move=[4.0, 3.0], n=3), Scripted(move=[-7.0, 0.0], n=1)]
    server, _ = one_round(method, server, agents)
    A = (0.75 * 0.8 - 0.25, 0.75 * 0.6)
    cos = [(0.8 * A[0] + 0.6 * A[1]) / math.hypot(*A), -A[0] / math.hypot(*A)]
    assert cos[1] < 0
    r = [0.5 * cos[0], 1e-3]  # the second falls below the floor
    r = [x / sum(r) for x in r]
    assert torch.allclose(server["r"], torch.tensor(r), atol=1e-6)
    assert torch.allclose(server["w"]["a"], torch.tensor([A]))
    assert math.ceil(2 * math.tanh(r[1]) / math.tanh(r[0])) == 1  # so agent 1 gets the larger half of A
    assert torch.allclose(server["v"]["a"], torch.tensor([[[A[0], A[1]]], [[0.0, A[1]]]]))
    # round 2. (1, 0) and (0, 1), weighted by r; agents train from their own models
    agents = [Scripted(move=[5.0, 0.0], n=3), Scripted(move=[0.0, 0.1], n=1)]
    after, _ = one_round(method, server, agents)
    norm = math.hypot(*r)
    r2 = [0.5 * x + 0.5 * x / norm for x in r]
    assert torch.allclose(after["r"], torch.tensor([x / sum(r2) for x in r2]), atol=1e-6)
    assert torch.allclose(
        after["v"]["a"] - server["v"]["a"], torch.tensor([[[r[0], r[1]]], [[r[0], 0.0]]]), atol=1e-6
    )
    assert torch.allclose(after["w"]["a"], torch.tensor([[A[0] + r[0], A[1] + r[1]]]), atol=1e-6)


def test_cgsv_scales_an_update_to_length_gamma():
    method = ff.CGSV(Gamma=0.5)
    _, upload = method.local({"v": {"a": torch.zeros(1, 2)}}, {}, Scripted(move=[30.0, 40.0]))
    assert torch.allclose(upload.each["u"]["a"], torch.tensor([[0.3, 0.4]]), atol=1e-6)


@pytest.mark.parametrize("q", [1e-9, 0.3, 0.5, 0.51, 1.0])
def test_cgsv_keeps_the_largest_entries_of_each_layer(q):
    A = torch.tensor([[0.1, -0.4], [0.3, -0.2]])
    k = min(math.ceil(4 * q), 4)
    kept = sorted([0.4, 0.3, 0.2, 0.1], reverse=True)[:k]
    reward = ff.CGSV._rewards(A, torch.tensor([q]))[0]
    assert sorted(reward[reward != 0].abs().tolist(), reverse=True) == pytest.approx(kept)


def test_cgsv_with_zero_updates_does_not_move():
    method = ff.CGSV()
    server = cgsv_start(method)
    for moves in ([0.0, 0.0], [[1.0, 0.0], 0.0], [0.0, 0.0]):
        server, _ = one_round(method, server, [Scripted(move=move) for move in moves])
        assert all(torch.isfinite(v).all() for v in (server["r"], server["v"]["a"], server["w"]["a"]))
    # only the second round moved, by r_0 = 1/2 (after round 1 both are at the floor) times length 0.5
    assert torch.allclose(server["w"]["a"], torch.tensor([[0.25, 0.0]]), atol=1e-5)


def test_cgsv_with_keep_adds_the_reward_to_the_trained_model():
    method = ff.CGSV(alpha=0.5, Gamma=1.0, keep=True)
    moves = [[4.0, 3.0], [-7.0, 0.0]]
    agents = [Scripted(move=moves[0], n=3), Scripted(move=moves[1], n=1)]
    server, _ = one_round(method, cgsv_start(method), agents)
    A = (0.75 * 0.8 - 0.25, 0.75 * 0.6)  # as without keep, and so are the rewards: all of A, and its larger half
    v = torch.tensor([[[4 + A[0], 3 + A[1]]], [[-7.0, A[1]]]])
    assert torch.allclose(server["v"]["a"], v, atol=1e-5)
    assert torch.allclose(server["w"]["a"], torch.tensor([A]))


@every_engine
def test_cgsv_with_keep_stays_a_reward_away_from_the_best_model(engine):
    """Each round moves an agent from a distance d to rho d. All move in the same direction, so the reward moves
    them by Gamma: d' = rho d - Gamma. Its cycle of length two has |d| = Gamma / (1 + rho)."""
    fed, network = one_weight(1.0, 2.0)
    train = ff.Train(lr=0.1, steps=4)
    done = last_round(ff.CGSV(Gamma=0.5, keep=True), fed, 60, model=network, train=train, engine=engine)
    rho = (1 - 2 * 0.1) ** 4
    off = done.server["v"]["weight"].flatten() - torch.tensor([1.0, 2.0])
    assert torch.allclose(off.abs(), torch.full((2,), 0.5 / (1 + rho)), atol=1e-4)


@every_engine
def test_cgsv_rewards_only_participants(ragged, engine):
    setup = Setup.of(ff.CGSV(), ragged, 1, engine=engine, fraction=0.4)
    server, _ = setup.start()
    *_, done = run(setup)
    moved = [not torch.equal(done.server["v"]["1.weight"][e], server["w"]["1.weight"]) for e in range(5)]
    assert sum(moved) == 2


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (ff.QFFL, {"q": -1.0}),
        (ff.QFFL, {"q": math.inf}),
        (ff.QFFL, {"at": "during"}),
        (ff.AFL, {"gamma": -0.1}),
        (ff.Ditto, {"lam": -1.0}),
        (ff.FedProx, {"mu": math.nan}),
        (ff.CGSV, {"alpha": 1.0}),
        (ff.CGSV, {"beta": 0.0}),
        (ff.CGSV, {"Gamma": -1.0}),
    ],
)
def test_invalid_options_are_refused(kind, wrong):
    with pytest.raises(InputError, match=f"{kind.__name__.lower()}.{next(iter(wrong))}"):
        kind(**wrong)
