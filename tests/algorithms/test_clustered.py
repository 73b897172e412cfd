"""FedAvg-HardCluster, IFCA, FedEM, FeSEM, CFL and FedSoft: facts from their definitions."""

import math

import numpy as np
import pytest
import torch
from helpers.federations import make_ragged
from helpers.scripted import Scripted, models, one_round
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import focusfl as ff
from focusfl.algorithms import cfl, fedem, fedsoft, fesem
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError

every_engine = pytest.mark.parametrize("engine", ["serial", "vectorised"])
FULL = ff.Train(lr=0.1, steps=3)


def last_round(algorithm, fed, rounds=5, **options):
    *_, done = run(Setup.of(algorithm, fed, rounds, **options))
    return done


# --- FedAvg-HardCluster


@every_engine
def test_hard_cluster_is_fedavg_run_on_each_cluster_by_itself(ragged, engine):
    method = ff.HardCluster(M=3, clusters=(0, 0, 2, 0, 2))
    done = last_round(method, ragged, 4, train=FULL, engine=engine)
    for m, members in ((0, (0, 1, 3)), (2, (2, 4))):
        pairs, tests = ([(d.x, d.y) for d in map(get, members)] for get in (ragged.train, ragged.test))
        part = ff.Federation.from_agents(pairs, test=tests, classes=3, model=ragged.recipe.model)
        alone = last_round(ff.FedAvg(), part, 4, train=FULL, engine=engine)
        for k, v in alone.server["w"].items():
            assert torch.allclose(done.server["w"][k][m], v[0], atol=1e-6)
        assert torch.allclose(done.scores.loss[list(members)], alone.scores.loss, atol=1e-5)


def test_hard_cluster_takes_the_clusters_that_focus_found(ragged):
    train = ff.Train(lr=0.3, steps=10)
    focus = ff.fit(ff.Focus(M=2), ragged, rounds=40, train=train)
    hard = ff.fit(ff.HardCluster(M=2), ragged, rounds=40, train=train)
    assert hard.clusters.tolist() == focus.clusters.tolist()
    assert set(hard.pi.flatten().tolist()) == {0.0, 1.0}
    assert len(focus.clusters.unique()) == 2


def test_hard_cluster_refuses_clusters_that_do_not_fit(ragged):
    with pytest.raises(InputError, match=r"hardcluster\.clusters.* 5 "):  # before any training
        Setup.of(ff.HardCluster(M=2, clusters=(0, 1)), ragged, 1)
    with pytest.raises(InputError, match=r"hardcluster\.clusters"):
        ff.HardCluster(M=2, clusters=(0, 2))


# --- IFCA


def test_ifca_round_by_hand_with_an_empty_cluster():
    # agents 0 and 1 have the smallest loss with model 1, agent 2 with model 0; training adds 1, 3 and 5
    agents = [
        Scripted([2.0, 1.0, 3.0], move=1.0, n=8),
        Scripted([2.0, 1.0, 1.5], move=3.0),
        Scripted([0.1, 1.0, 3.0], move=5.0),
    ]
    after, states = one_round(ff.IFCA(M=3), {"w": models([10.0], [20.0], [30.0])}, agents)
    assert after["w"]["a"].flatten().tolist() == [15.0, 22.0, 30.0]  # plain means
    assert [s["pi"].argmax().item() for s in states] == [1, 1, 0]


@every_engine
def test_ifca_with_one_cluster_is_the_plain_mean(ragged, engine):
    one = last_round(ff.IFCA(M=1), ragged, 3, train=FULL, engine=engine).server["w"]
    mean = last_round(ff.QFFL(q=0.0), ragged, 3, train=FULL, engine=engine).server["w"]
    assert all(torch.allclose(one[k], mean[k], atol=1e-5) for k in one)


# --- FedEM


def test_fedem_labels_for_given_losses():
    # pi = (1/2, 1/2). Example 1: losses ln 2, ln 4: q = (2/3, 1/3). Example 2: 0, ln 3: q = (3/4, 1/4)
    agent = Scripted(examples=[[math.log(2), 0.0], [math.log(4), math.log(3)]], n=2)
    after, states = one_round(ff.FedEM(M=2), {"w": models([0.0], [10.0])}, [agent])
    assert torch.allclose(agent.asked["weights"], torch.tensor([[2 / 3, 3 / 4], [1 / 3, 1 / 4]]))
    assert torch.allclose(states[0]["pi"], torch.tensor([17 / 24, 7 / 24]))
    assert after["w"]["a"].flatten().tolist() == [1.0, 11.0]
    # then with pi = (17, 7) / 24 example 1 has 17 * 2 : 7 * 1
    _, states = one_round(ff.FedEM(M=2), after, [agent], states)
    assert torch.allclose(agent.asked["weights"][0], torch.tensor([34 / 41, 51 / 58]))


def test_fedem_weights_models_by_examples_not_by_labels():
    # both models are averaged with n_e: (1 * 2 + 3 * 6) / 4 = 5
    agents = [Scripted(examples=[[0.0], [50.0]], move=2.0, n=1), Scripted(examples=[[50.0], [0.0]], move=6.0, n=3)]
    after, _ = one_round(ff.FedEM(M=2), {"w": models([0.0], [10.0])}, agents)
    assert after["w"]["a"].flatten().tolist() == [5.0, 15.0]


@pytest.mark.parametrize("losses", [[[900.0], [900.0]], [[900.0], [0.0]], [[1e30], [900.0]]])
def test_fedem_with_losses_of_900(losses):
    pi, state = torch.tensor([0.5, 0.5]), None
    for _ in range(3):  # a label that fell to 0 stays a number
        q = fedem.e_step(pi, torch.tensor(losses))
        assert torch.isfinite(q).all() and q.sum().item() == pytest.approx(1)
        pi, state = q.mean(1), q
    expected = 0.5 if losses[0] == losses[1] else 0.0
    assert state[0].item() == pytest.approx(expected)


@every_engine
def test_fedem_trains_two_equal_models_with_half_the_gradient(engine):
    # two models at 0, targets 1 and 3: q = 1/2, so one step of 0.1 on mean(q 2 (w - y)) = -2 gives 0.2, not 0.4
    agents = [([[1.0], [1.0]], [1.0, 3.0])] * 2

    def zeros():
        network = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(network.weight)
        return network

    fed = ff.Federation.from_agents(agents, test=agents)
    done = last_round(ff.FedEM(M=2), fed, 1, model=zeros, train=ff.Train(lr=0.1, steps=1), engine=engine)
    assert torch.allclose(done.server["w"]["weight"].flatten(), torch.tensor([0.2, 0.2]))


@every_engine
def test_fedem_with_one_component_is_fedavg(ragged, engine):
    one = last_round(ff.FedEM(M=1), ragged, 3, engine=engine).server["w"]
    other = last_round(ff.FedAvg(), ragged, 3, engine=engine).server["w"]
    assert all(torch.allclose(one[k], other[k], atol=1e-5) for k in one)


@given(st.lists(st.lists(st.floats(0, 900), min_size=3, max_size=3), min_size=2, max_size=4))
def test_responsibilities_are_probabilities(losses):
    q = fedem.e_step(torch.full((len(losses),), 1 / len(losses)), torch.tensor(losses))
    assert torch.allclose(q.sum(0), torch.ones(3), atol=1e-5) and (q >= 0).all()


# --- FeSEM


def fesem_server(*centres, E, t=1):
    k = torch.zeros(E, dtype=torch.long)
    return {"w": models(*centres), "first": models([0.0]), "k": k, "t": torch.tensor(t)}


def test_fesem_round_by_hand_with_an_empty_cluster():
    # all restart from centre 0 at 5 and train to 4, 7 and 9; centres 5, 8, 100: nearest 0, 1, 1; means 4 and 8
    agents = [Scripted(move=-1.0, n=9), Scripted(move=2.0), Scripted(move=4.0)]
    after, _ = one_round(ff.FeSEM(M=3), fesem_server([5.0], [8.0], [100.0], E=3), agents)
    assert after["k"].tolist() == [0, 1, 1]
    assert after["w"]["a"].flatten().tolist() == [4.0, 8.0, 100.0]
    # agents 1 and 2 continue from centre 1; agent 1 trains to 8 - 5 = 3, which is nearer to centre 0
    after, _ = one_round(ff.FeSEM(M=3), after, [Scripted(move=0.0), Scripted(move=-5.0), Scripted(move=0.0)])
    assert after["k"].tolist() == [0, 0, 1]
    assert after["w"]["a"].flatten().tolist() == [3.5, 8.0, 100.0]


def test_fesem_starts_from_trained_models_far_apart():
    # from one network the agents train to 0, 10, 1, 11: two clusters
    after, _ = one_round(
        ff.FeSEM(M=2), fesem_server([0.0], [0.0], E=4, t=0), [Scripted(move=m) for m in (0, 10, 1, 11)]
    )
    assert after["k"][0] == after["k"][2] != after["k"][1] == after["k"][3]
    assert sorted(after["w"]["a"].flatten().tolist()) == [0.5, 10.5]


def test_fesem_with_more_clusters_than_agents_is_finite():
    assert fesem.farthest_points(torch.tensor([[0.0], [3.0]]), 5).sort().values.tolist() == [0, 1]
    fed = make_ragged(sizes=(9, 9, 9, 9, 9))
    assert torch.isfinite(last_round(ff.FeSEM(M=8), fed, 2).scores.loss).all()


# --- CFL


def cfl_server(E, t, *centres):
    return {"w": models(*centres), "k": torch.zeros(E, dtype=torch.long), "t": torch.tensor(t)}


LEFT, RIGHT = [-2.0, 0.1], [2.0, 0.1]


def test_cfl_splits_two_opposed_groups():
    moves = [RIGHT, LEFT, RIGHT, LEFT, RIGHT]
    # the mean update is (0.4, 0.1), longer than e1 = 0.4: balance it
    method = ff.CFL(e1=0.5)
    agents = [Scripted(move=m) for m in moves]
    after, _ = one_round(method, cfl_server(5, 20, [0.0, 0.0], [9.0, 9.0]), agents)
    assert after["k"].tolist() == [0, 1, 0, 1, 0]
    assert torch.allclose(after["w"]["a"], torch.tensor([RIGHT, LEFT]))  # each group continues with its own mean


@pytest.mark.parametrize(
    ("moves", "t", "why"),
    [
        ([RIGHT, RIGHT, RIGHT, RIGHT], 20, "one group: the mean update is long"),
        ([RIGHT, LEFT, RIGHT, LEFT], 19, "round 20 is too early"),
        ([[-0.5, 0.0], [0.5, 0.0], [-0.5, 0.0], [0.5, 0.0]], 20, "no update is longer than e2"),
        ([RIGHT, LEFT], 20, "two members stay together"),
    ],
)
def test_cfl_does_not_split(moves, t, why):
    server = cfl_server(len(moves), t, [0.0, 0.0], [9.0, 9.0])
    after, _ = one_round(ff.CFL(), server, [Scripted(move=m) for m in moves])
    assert after["k"].tolist() == [0] * len(moves), why
    assert torch.allclose(after["w"]["a"], torch.tensor([torch.tensor(moves).mean(0).tolist(), [9.0, 9.0]]))


def test_cfl_stops_at_the_largest_number_of_clusters():
    agents = [Scripted(move=m) for m in (RIGHT, LEFT, RIGHT, LEFT)]
    after, _ = one_round(ff.CFL(most=1), cfl_server(4, 30, [0.0, 0.0]), agents)
    assert after["k"].tolist() == [0, 0, 0, 0]


def test_cfl_uses_complete_linkage():
    # directions at 0, 30, 60, 100 and 190 degrees: 0-30, then 60-100 (40; 30-60 would span 60), then the two pairs
    # (100 wide) before 190 joins (130): 190 alone
    angles = torch.tensor([0.0, 30.0, 60.0, 100.0, 190.0]).deg2rad()
    assert cfl.split(torch.stack([angles.cos(), angles.sin()], 1)).tolist() == [False] * 4 + [True]
    # at 0, 50, 100, 160: 0-50, then 100-160 (60), since 50-100 would span 100: two pairs. Single linkage: 160 alone
    angles = torch.tensor([0.0, 50.0, 100.0, 160.0]).deg2rad()
    smaller = cfl.split(torch.stack([angles.cos(), angles.sin()], 1))
    assert smaller[0] == smaller[1] != smaller[2] == smaller[3]


def test_cfl_finds_the_agents_whose_labels_are_reversed():
    fed = make_ragged(sizes=(60, 60, 60, 60, 60))
    method = ff.CFL(e1=0.25, e2=0.3, wait=10)
    done = last_round(method, fed, 12, train=ff.Train(lr=0.5, steps=10))
    assert done.server["k"].tolist() == [0, 0, 0, 1, 1]


# --- FedSoft


def test_fedsoft_shares():
    # of four examples three fit centre 0 best; an absent cluster keeps 1e-4
    agent = Scripted(examples=[[0.1, 0.2, 0.3, 9.0], [1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
    assert torch.allclose(fedsoft.shares(agent.example_losses({}), agent), torch.tensor([0.75, 0.25, 1e-4]))


def test_fedsoft_pull_and_centres_by_hand():
    # centres 0 and 4, shares (3/4, 1/4): pulled to 1 with strength 0.1; theta = 10 + 2 = 12, n = 8
    agents = [
        Scripted(examples=[[0.1, 0.1, 0.1, 9.0], [1.0, 1.0, 1.0, 1.0]], move=2.0, n=8),
        Scripted(examples=[[9.0, 9.0, 0.1, 0.1], [1.0, 1.0, 1.0, 1.0]], move=4.0, n=4),
    ]
    held = {"theta": models([10.0]), "u": torch.tensor([0.5, 0.5])}
    after, states = one_round(ff.FedSoft(M=2), {"c": models([0.0], [4.0])}, agents, [held, held])
    assert agents[0].asked["pull"].to["a"].item() == pytest.approx(1.0)
    assert float(agents[0].asked["pull"].strength) == pytest.approx(0.1)
    assert agents[1].asked["pull"].to["a"].item() == pytest.approx(2.0)
    assert [s["theta"]["a"].item() for s in states] == [12.0, 14.0]  # kept from round to round
    # c_0 = (6 * 12 + 2 * 14) / 8 = 12.5, c_1 = (2 * 12 + 2 * 14) / 4 = 13
    assert torch.allclose(after["c"]["a"].flatten(), torch.tensor([12.5, 13.0]))


@every_engine
def test_fedsoft_without_a_pull_is_local_training(ragged, engine):
    setup = Setup.of(ff.FedSoft(M=2, lam=0.0, init="tied"), ragged, 3, train=FULL, engine=engine)
    _, states = setup.start()
    start = {k: v[0, 0].clone() for k, v in states["theta"].items()}
    *_, done = run(setup)
    network = setup.networks.network()
    network.load_state_dict(start)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    x, y = ragged.train(1)
    for _ in range(9):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimiser.step()
    for k, v in network.state_dict().items():
        assert torch.allclose(done.states["theta"][k][1, 0], v, atol=1e-5)


# --- new agents


def by_index(w, only=None):
    """A predictor h: each model predicts its only weight."""
    return w["a"].reshape(len(w["a"]), 1, 1)


TWO = models([1.0], [5.0])
WORSE_FIRST = [[9.0, 9.0, 0.1, 9.0], [1.0, 1.0, 1.0, 1.0]]  # of four examples three fit the second model best


@pytest.mark.parametrize(
    ("method", "server", "state", "expected"),
    [
        (ff.IFCA(M=2), {"w": TWO}, {"pi": torch.tensor([0.0, 1.0])}, 5.0),
        (ff.FedEM(M=2), {"w": TWO}, {"pi": torch.tensor([0.25, 0.75])}, 4.0),  # 1/4 + 15/4
        (ff.FedSoft(M=2), {"c": TWO}, {"theta": models([7.0]), "u": torch.tensor([0.5, 0.5])}, 7.0),
        (ff.Ditto(), {"w": models([1.0])}, {"v": models([7.0])}, 7.0),
        (ff.CGSV(), {"v": models([7.0])}, {}, 7.0),
        (ff.QFFL(), {"w": models([7.0])}, {}, 7.0),
        (ff.FedProx(), {"w": models([7.0])}, {}, 7.0),
        (ff.HardCluster(M=2, clusters=(0, 1)), {"w": TWO, "k": torch.tensor(1)}, {}, 5.0),
        (ff.FeSEM(M=2), {"w": models([7.0]), "k": torch.tensor(1)}, {}, 7.0),
        (ff.CFL(), {"w": models([7.0]), "k": torch.tensor(1)}, {}, 7.0),
    ],
    ids=lambda v: v.name if hasattr(v, "name") else "",
)
def test_the_model_that_an_agent_predicts_with(method, server, state, expected):
    assert method.predict(server, state, by_index).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("method", "server", "expected"),
    [
        (ff.IFCA(M=2), {"w": TWO}, 5.0),
        (ff.FedSoft(M=2), {"c": TWO}, 4.0),  # shares 1/4, 3/4
        (ff.HardCluster(M=2, clusters=(0, 1)), {"w": TWO, "k": torch.tensor([0, 0])}, 5.0),
        (ff.FeSEM(M=2), {"w": TWO, "first": models([0.0]), "k": torch.tensor([0, 0]), "t": torch.tensor(1)}, 5.0),
        (ff.CFL(), {"w": TWO, "k": torch.tensor([0, 1]), "t": torch.tensor(1)}, 5.0),
        (ff.CGSV(), {"w": models([7.0]), "v": {"a": torch.zeros(2, 1, 1)}, "r": torch.zeros(2)}, 7.0),
        (ff.Ditto(), {"w": models([7.0])}, 7.0),
    ],
    ids=lambda v: v.name if hasattr(v, "name") else "",
)
def test_a_new_agent_gets_the_model_that_fits_its_data(method, server, expected):
    agent = Scripted(losses=[2.0, 1.0], examples=WORSE_FIRST)
    view, state = method.assign(server, agent)
    assert method.predict(view, state, by_index).item() == pytest.approx(expected, abs=1e-3)


def test_the_label_of_a_new_agent_of_fedem_is_the_mean_of_its_responsibilities():
    agent = Scripted(examples=[[math.log(2), 0.0], [math.log(4), math.log(3)]])
    _, state = ff.FedEM(M=2).assign({"w": TWO}, agent)
    assert torch.allclose(state["pi"], torch.tensor([17 / 24, 7 / 24]))


def test_cfl_assigns_no_new_agent_to_an_unused_cluster():
    server = {"w": TWO, "k": torch.tensor([0, 0]), "t": torch.tensor(1)}  # one cluster so far
    view, _ = ff.CFL(most=2).assign(server, Scripted(losses=[2.0, 1.0]))
    assert view["w"]["a"].item() == 1.0


def test_new_agents_predict_after_real_runs(ragged):
    for method in (ff.IFCA(M=2), ff.FedEM(M=2), ff.FeSEM(M=2), ff.CFL(wait=0), ff.CGSV(), ff.FedSoft(M=2)):
        result = ff.fit(method, ragged, rounds=3)
        x, y = ragged.train(4)
        assert torch.isfinite(result.assign(x, y).predict(x)).all()


# --- batch norm: lengths and angles are those of trained tensors, not of running statistics


class WithBatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("method", [ff.CGSV(), ff.CFL(), ff.FeSEM(M=2)], ids=lambda m: m.name)
def test_batch_statistics_are_sent_separately_from_trained_tensors(method, ragged):
    setup = Setup.of(method, ragged, 1, model=WithBatchNorm, train=ff.Train(lr=0.01, steps=1))
    server, states = setup.start()
    each = setup.engine.round(method, server, states, 0, np.arange(5)).each
    trained = each.get("u", each.get("theta"))  # lengths, angles and distances are computed from these
    assert trained.keys() == {f"layers.{i}.{k}" for i in (0, 1, 3) for k in ("weight", "bias")}
    assert each["statistics"].keys() == {"layers.1.running_mean", "layers.1.running_var"}
    after = method.aggregate(server, {}, each, torch.arange(5))
    moved = after["w"]["layers.1.running_mean"] - server["w"]["layers.1.running_mean"]
    assert moved.abs().max() > 0


def test_cgsv_learns_with_batch_norm():
    fed = make_ragged(sizes=(60, 60, 60, 60, 60))
    result = ff.fit(ff.CGSV(Gamma=0.3), fed, model=WithBatchNorm, rounds=40, train=ff.Train(lr=0.1, steps=5))
    assert result.acc[:3].mean() > 0.75  # the three that agree; chance is 1/3


# --- a fraction of the agents


def test_cgsv_weights_a_late_agent_by_its_examples():
    method = ff.CGSV(alpha=0.5, Gamma=1.0)
    server = {"w": {"a": torch.zeros(1, 2)}, "v": {"a": torch.zeros(3, 1, 2)}, "r": torch.tensor([1.0, 0.0, 0.0])}
    each = {"u": {"a": torch.tensor([[[1.0, 0.0]]])}, "statistics": {}, "n": torch.tensor([5.0])}
    after = method.aggregate(server, {}, each, torch.tensor([2]))  # agent 2 answers for the first time, alone
    assert torch.allclose(after["w"]["a"], torch.tensor([[1.0, 0.0]]))
    assert torch.allclose(after["v"]["a"][2], torch.tensor([[1.0, 0.0]]))


def test_cgsv_gives_a_late_agent_the_model_of_the_server():
    method = ff.CGSV(Gamma=1.0)
    server = {"w": {"a": torch.full((1, 2), 5.0)}, "v": {"a": torch.zeros(2, 1, 2)}, "r": torch.tensor([1.0, 0.0])}
    assert method.downlink(server, torch.tensor(0))["v"]["a"].tolist() == [[0.0, 0.0]]
    assert method.downlink(server, torch.tensor(1))["v"]["a"].tolist() == [[5.0, 5.0]]
    each = {"u": {"a": torch.tensor([[[1.0, 0.0]]])}, "statistics": {}, "n": torch.tensor([5.0])}
    after = method.aggregate(server, {}, each, torch.tensor([1]))  # it is alone, so its reward is its own update
    assert torch.allclose(after["v"]["a"], torch.tensor([[[0.0, 0.0]], [[6.0, 5.0]]]))


def test_the_batch_statistics_of_cgsv_on_the_server_are_the_mean_over_the_agents():
    """With few agents per round, adding the changes of their statistics would give negative variances."""
    fed = make_ragged(sizes=(60, 60, 60, 60, 60))
    options = {"model": WithBatchNorm, "train": ff.Train(lr=0.1, steps=5), "fraction": 0.4}
    *_, done = run(Setup.of(ff.CGSV(Gamma=0.3), fed, 25, **options))
    for k in ("layers.1.running_mean", "layers.1.running_var"):
        participated = done.server["r"] > 0
        assert torch.allclose(done.server["w"][k], done.server["v"][k][participated].mean(0))
    assert (done.server["w"]["layers.1.running_var"] > 0).all()


def test_fesem_starts_late_agents_from_the_common_network(ragged):
    setup = Setup.of(ff.FeSEM(M=2), ragged, 1, fraction=0.4)
    server, _ = setup.start()
    *_, done = run(setup)
    late = [e for e in range(5) if done.server["k"][e] == 2]
    assert len(late) == 3
    view = ff.FeSEM(M=2).downlink(done.server, torch.tensor(late[0]))
    assert all(torch.equal(v, server["first"][k]) for k, v in view["w"].items())


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (ff.IFCA, {"M": 0}),
        (ff.IFCA, {"M": 2.0}),
        (ff.FedSoft, {"M": True}),
        (ff.IFCA, {"M": 2.5}),
        (ff.IFCA, {"init": "foo"}),
        (ff.HardCluster, {"init": "foo"}),
        (ff.PFNM, {"it": math.inf}),
        (ff.FeSEM, {"M": math.nan}),
        (ff.FedEM, {"M": 0}),
        (ff.FeSEM, {"M": 0}),
        (ff.FedSoft, {"lam": -1.0}),
        (ff.CFL, {"e1": -1.0}),
        (ff.CFL, {"most": 0}),
    ],
)
def test_invalid_options_are_refused(kind, wrong):
    with pytest.raises(InputError, match=f"{kind.__name__.lower()}.{next(iter(wrong))}"):
        kind(**wrong)
