"""What every algorithm must do on every engine: agree, repeat to the bit, ignore padding, tolerate absences."""

import contextlib
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from helpers.federations import make_ragged
from torch import nn

import focusfl as ff
from focusfl.algorithms import ALGORITHMS
from focusfl.core import Algorithm, Pull, Upload
from focusfl.core.tree import flatten
from focusfl.engines import ENGINES, choose, plan
from focusfl.engines.kernels.mlp import Mlp
from focusfl.engines.vectorised import chunk, engine
from focusfl.models.task import Task
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError, Interrupted
from focusfl.util.plugins import load_object

METHODS = {name: kind() for name, kind in ALGORITHMS.items()}
METHODS["focus, tied"] = ff.Focus(M=2, init="tied")
METHODS["focus, split"] = ff.Focus(M=2, init="split", warmup=2)
METHODS["focus, auto"] = ff.Focus(M="auto", init="split", forget=0.9)
METHODS["cgsv, keep"] = ff.CGSV(Gamma=0.1, keep=True)  # with 0.5 it does not settle, and rounding errors grow
METHODS["hardcluster"] = ff.algorithms.HardCluster(M=2, clusters=(0, 0, 0, 1, 1))
METHODS["own"] = load_object("helpers.own_method:FedMedian")(step=0.5)  # of a file of the user's own
every_algorithm = pytest.mark.parametrize("algorithm", METHODS.values(), ids=METHODS)
every_engine = pytest.mark.parametrize("engine", list(ENGINES))
TRAIN = ff.Train(lr=0.1, steps=5, batch=8, momentum=0.5, weight_decay=0.001)


def final(algorithm, fed, rounds=20, train=TRAIN, **options):
    *_, done = run(Setup.of(algorithm, fed, rounds, train=train, **options))
    return flatten({"server": done.server, "agents": done.states, "loss": done.scores.loss})


def largest_difference(a, b):
    assert a.keys() == b.keys()
    return max(((a[k] - b[k]).abs() / b[k].abs().clamp_min(1)).max().item() for k in a)


@every_algorithm
@pytest.mark.parametrize(
    ("train", "rounds"),
    [
        (TRAIN, 20),
        (ff.Train(lr=0.1, steps=5), 20),
        (ff.Train(lr=0.1, epochs=2, batch=8, momentum=0.5), 20),
        (ff.Train(epochs=1, batch=1), 5),  # up to 40 steps per round
    ],
    ids=["mini-batches", "full batch", "epochs of different length", "single examples"],
)
def test_serial_and_vectorised_agree_on_ragged_agents(algorithm, train, rounds, ragged):
    a, b = (final(algorithm, ragged, rounds, train, engine=engine) for engine in ENGINES)
    assert largest_difference(a, b) < 1e-5


@every_algorithm
@every_engine
def test_a_rerun_is_the_same_to_the_bit(algorithm, engine, ragged):
    a, b = (final(algorithm, ragged, rounds=5, engine=engine) for _ in range(2))
    assert all(torch.equal(a[k], b[k]) for k in a)


@every_algorithm
@every_engine
def test_the_seed_matters(algorithm, engine, ragged):
    a, b = (final(algorithm, ragged, rounds=2, engine=engine, seed=seed) for seed in (0, 1))
    assert largest_difference(a, b) > 1e-3


@every_algorithm
def test_garbage_under_the_padding_changes_nothing(algorithm, ragged, monkeypatch):
    a = final(algorithm, ragged, rounds=3, engine="vectorised")
    gather, draw = chunk.Chunk._gather, plan.batches

    def gather_garbage(self, rows, size, e=None):
        x, y, mask = gather(self, rows, size, e)
        padding = mask == 0
        assert padding.any()
        return torch.where(padding[..., None], 1e6, x), torch.where(padding, 1, y), mask

    def draw_other_rows(*arguments):
        drawn = draw(*arguments)
        padding = np.arange(drawn.rows.shape[2]) >= drawn.size[:, :, None]
        return drawn._replace(rows=np.where(padding, 0, drawn.rows))

    monkeypatch.setattr(chunk.Chunk, "_gather", gather_garbage)
    monkeypatch.setattr(plan, "batches", draw_other_rows)
    b = final(algorithm, ragged, rounds=3, engine="vectorised")
    assert all(torch.equal(a[k], b[k]) for k in a)


@every_algorithm
def test_chunks_change_nothing_but_rounding(algorithm, ragged, monkeypatch):
    whole = final(algorithm, ragged, rounds=5, engine="vectorised")
    monkeypatch.setattr(engine, "CHUNK_BYTES", 1)  # one agent at a time
    assert largest_difference(whole, final(algorithm, ragged, rounds=5, engine="vectorised")) < 1e-5


PER_AGENT = (
    "agents",
    "loss",
    "server/lam",
    "server/k",
    "server/r",
    "server/v/",
    "server/order",
    "server/matched",
    "server/split/first_labels",
)  # these tensors have one row per agent


@every_algorithm
@every_engine
def test_the_order_of_the_agents_changes_nothing_but_rounding(algorithm, engine):
    order = [3, 0, 4, 2, 1]
    fed = make_ragged()
    pairs, tests = ([(d.x, d.y) for d in (get(e) for e in order)] for get in (fed.train, fed.test))
    reordered = ff.Federation.from_agents(pairs, test=tests, model=fed.recipe.model)
    full = ff.Train(lr=0.1, steps=3)  # with full batches, rows do not depend on an agent's number
    other = algorithm
    if isinstance(algorithm, ff.algorithms.HardCluster):
        other = replace(algorithm, clusters=tuple(algorithm.clusters[e] for e in order))
    a = final(algorithm, fed, rounds=5, train=full, engine=engine)
    b = final(other, reordered, rounds=5, train=full, engine=engine)
    a = {k: v[order] if k.startswith(PER_AGENT) else v for k, v in a.items()}
    assert largest_difference(a, b) < 1e-5


@every_algorithm
@every_engine
def test_the_state_survives_a_checkpoint(algorithm, engine, ragged, tmp_path):
    setup = Setup.of(algorithm, ragged, 6, train=TRAIN, engine=engine, checkpoint_every=100)
    whole = final(algorithm, ragged, rounds=6, engine=engine)
    with contextlib.suppress(Interrupted):
        for done in run(setup, tmp_path, stop=lambda: True):
            assert done.t == 1
    *_, done = run(setup, tmp_path, resume=True)
    again = flatten({"server": done.server, "agents": done.states, "loss": done.scores.loss})
    assert all(torch.equal(whole[k], again[k]) for k in whole)


# State of participating agents that need not change in a round; all other state must.
MAY_STAY = {
    "ifca": ("pi",),  # a hard label
    "fedsoft": ("u",),  # shares of few examples
    "pfnm": ("v/",),  # after the match, agents do not train
    "fedma": ("v/",),  # a matched layer is frozen, and an agent that missed one does not train
    "focus": (
        "log_pi",
        "split/has_label",
        "merge/shared_loss",
    ),  # one shared model until the split, fixed for a while
    "focus, auto": ("log_pi", "split/has_label", "merge/shared_loss"),
    "focus, split": ("log_pi", "split/has_label"),
}


@pytest.mark.parametrize("name", METHODS)
@every_engine
def test_the_state_of_participants_changes_and_that_of_other_agents_does_not(name, engine, ragged):
    setup = Setup.of(METHODS[name], ragged, 10, train=TRAIN, engine=engine, fraction=0.4)
    before = flatten(setup.start()[1])
    changed_once = set()
    for t, done in enumerate(run(setup, eval_every=0)):
        cohort = plan.cohort(0, t, 5, 0.4).tolist()
        assert len(cohort) == 2
        after = {k: v.clone() for k, v in flatten(done.states).items()}
        for k, v in before.items():
            changed = [e for e in range(5) if not torch.equal(v[e], after[k][e])]
            assert set(changed) <= set(cohort), k
            if not k.startswith(MAY_STAY.get(name, ())):
                assert changed == cohort, k
            changed_once |= {k} if changed else set()
        before = after
    assert changed_once == set(before)  # also what may stay in one round changes in another


@every_engine
def test_focus_does_not_train_pruned_models(engine, monkeypatch):
    """With settled labels, every agent trains one model of three."""
    ragged = make_ragged(sizes=(23, 9, 40, 12, 31))
    trained = []
    outputs = Task.outputs

    def counted(self, w, x, train=False):
        trained.append(train)
        return outputs(self, w, x, train)

    setup = Setup.of(ff.Focus(M=3, init="tied"), ragged, 1, train=TRAIN, engine=engine)
    server, states = setup.start()
    states["log_pi"][:] = torch.tensor([0.0, -50.0, -50.0])
    monkeypatch.setattr(Task, "outputs", counted)
    gradient = Mlp.gradient
    monkeypatch.setattr(Mlp, "gradient", lambda *a, **k: trained.append(len(a[2]) == 5) or gradient(*a, **k))
    before = {k: v.clone() for k, v in server["w"].items()}
    upload = setup.engine.round(setup.algorithm, server, states, 0, np.arange(5))
    after = setup.algorithm.aggregate(server, upload.add, upload.each, torch.arange(5))["w"]
    assert all(torch.allclose(after[k][1:], before[k][1:], atol=1e-6) for k in before)
    assert not torch.allclose(after["1.weight"][0], before["1.weight"][0], atol=1e-3)
    per_agent = TRAIN.steps * (5 if engine == "serial" else 1)
    assert sum(trained) == per_agent


def test_the_e_step_is_the_first_forward_pass_of_the_m_step(ragged, monkeypatch):
    """Full batch, serial: M + M (K - 1) passes per agent, not M + M K; same numbers as without the fusion."""
    passes = []
    outputs = Task.outputs
    monkeypatch.setattr(Task, "outputs", lambda *a, **k: passes.append(1) or outputs(*a, **k))
    setup = Setup.of(ff.Focus(M=2, init="tied"), ragged, 1, train=ff.Train(steps=4), engine="serial")
    server, states = setup.start()
    fused = setup.engine.round(setup.algorithm, server, states, 0, np.arange(5))
    assert len(passes) == 5 * (2 + 2 * 3)
    monkeypatch.setattr(setup.task, "stateless", False)
    server, states = setup.start()
    separate = setup.engine.round(setup.algorithm, server, states, 0, np.arange(5))
    assert largest_difference(flatten(fused.add), flatten(separate.add)) < 1e-6


class WithBatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x)


def test_any_module_runs_serially_and_batch_statistics_are_averaged(ragged):
    setup = Setup.of(ff.FedAvg(), ragged, 2, model=WithBatchNorm, train=ff.Train(steps=2))
    assert setup.engine.name == "serial"
    a, b = (final(ff.FedAvg(), ragged, rounds=2, model=WithBatchNorm, train=ff.Train(steps=2)) for _ in range(2))
    assert all(torch.equal(a[k], b[k]) for k in a)  # dropout too comes from (seed, t, e)
    assert "server/w/layers.1.running_mean" in a and "server/w/layers.1.num_batches_tracked" not in a
    assert a["server/w/layers.1.running_mean"].abs().max() > 0

    one = Setup.of(ff.FedAvg(weight_by_n=True), ragged, 1, model=WithBatchNorm, train=ff.Train(lr=1e-9, steps=1))
    server = next(iter(run(one))).server
    first = one.networks.network()
    hidden = [first.layers[0](ragged.train(e).x).mean(0).detach() for e in range(5)]
    n = ragged.training.sizes.float()
    expected = 0.1 * sum(w * h for w, h in zip(n, hidden, strict=True)) / n.sum()  # momentum 0.1 from 0
    assert torch.allclose(server["w"]["layers.1.running_mean"][0], expected, atol=1e-5)


def test_vectorised_refuses_batch_norm_and_suggests_serial(ragged):
    with pytest.raises(InputError, match="serial"):
        ff.fit(ff.FedAvg(), ragged, model=WithBatchNorm, rounds=1, engine="vectorised")


def test_auto_takes_vectorised_for_small_networks_and_serial_for_large(ragged):
    small, large = Task(ff.models.mlp(6, 8, 3), 3), Task(ff.models.mlp(6, 4000, 4000, 3), 3)
    assert choose("auto", small, ragged, ff.Train()).name == "vectorised"
    assert choose("auto", large, ragged, ff.Train()).name == "serial"
    with pytest.raises(InputError, match="vectorised"):
        choose("vectorized", small, ragged, ff.Train())


@dataclass(frozen=True)
class Tethered(Algorithm):
    """Every agent trains a model of its own, pulled to the shared one; the server sees each agent's loss."""

    name: ClassVar[str] = "Tethered"
    paper: ClassVar[str] = "-"
    personal: ClassVar[bool] = True
    strength: float = 0.5

    def start(self, networks, E):
        return {"w": networks.copies(1), "losses": torch.zeros(5)}

    def enroll(self, server):
        return {"v": server["w"]}

    def local(self, server, state, agent):
        v = agent.sgd(state["v"], pull=Pull(server["w"], self.strength))
        theta = agent.sgd(server["w"])
        return {"v": v}, Upload(add={"theta": theta}, each={"loss": agent.losses(state["v"])[0]})

    def aggregate(self, server, add, each, cohort):
        mean = {k: v / len(cohort) for k, v in add["theta"].items()}
        return {"w": mean, "losses": server["losses"].index_copy(0, cohort, each["loss"])}

    def predict(self, server, state, h):
        return h(state["v"])[0]


def test_engines_agree_on_pulls_and_on_individual_uploads(ragged):
    a, b = (final(Tethered(), ragged, rounds=10, engine=engine) for engine in ENGINES)
    assert largest_difference(a, b) < 1e-5
    one, other = (final(Tethered(), ragged, rounds=10, engine=engine, fraction=0.4) for engine in ENGINES)
    assert largest_difference(one, other) < 1e-5


@every_engine
def test_a_pull_by_hand(engine):
    # v = w = 0 at first; x = 1, y = 1, squared loss, lr 0.1, strength 0.5: v <- v - 0.1 (2 (v - 1) + 0.5 (v - 0))
    # two steps: 0.2, then 0.2 + 0.1 (1.6 - 0.1) = 0.35; the loss seen is that of v = 0 before training: 1
    agents = [([[1.0]], [1.0])] * 5
    network = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(network.weight)
    fed = ff.Federation.from_agents(agents, test=agents)
    out = final(Tethered(), fed, 1, ff.Train(lr=0.1, steps=2), model=network, engine=engine)
    assert torch.allclose(out["agents/v/weight"], torch.full((5, 1, 1, 1), 0.35))
    assert torch.allclose(out["server/losses"], torch.ones(5))


@every_engine
def test_the_schedule_reaches_the_local_steps(engine):
    # one weight at 0, x = 1, y = 1: a step multiplies the distance to 1 by (1 - 2 lr); lr 0.1, then 0.1 x 0.5
    agents = [([[1.0]], [1.0])] * 2
    network = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(network.weight)
    train = ff.Train(lr=0.1, steps=1, schedule="step", decay=0.5, decay_every=1)
    out = final(ff.FedAvg(), ff.Federation.from_agents(agents, test=agents), 2, train, model=network, engine=engine)
    assert abs(out["server/w/weight"].item() - (1 - 0.8 * 0.9)) < 1e-6


def test_the_e_step_computes_losses_in_eval_mode(ragged):
    """With batch norm and dropout, labels come from the network in eval mode, not in train mode."""
    setup = Setup.of(ff.Focus(M=2, init="tied"), ragged, 1, model=WithBatchNorm, train=ff.Train(steps=1))
    server, states = setup.start()
    setup.engine.round(setup.algorithm, server, states, 0, np.arange(5))
    for e in range(5):
        losses = []
        for m in range(2):
            network = setup.networks.network().eval()
            network.load_state_dict({k: v[m] for k, v in server["w"].items()}, strict=False)
            x, y = ragged.train(e)
            losses.append(-nn.functional.cross_entropy(network(x), y))
        assert torch.allclose(states["log_pi"][e].exp(), torch.softmax(torch.stack(losses), 0), atol=1e-5)


def test_small_steps_use_one_thread_and_the_setting_is_restored(ragged):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for model, inside in ((ragged.recipe.model, 1), (lambda: ff.models.mlp(6, 2000, 2000, 3), 2)):
            with Setup.of(ff.FedAvg(), ragged, 1, model=model).engine.threads():
                assert torch.get_num_threads() == inside
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Curious(Algorithm):
    """Asks an agent for everything it can answer, and trains only the last layer."""

    name: ClassVar[str] = "Curious"
    paper: ClassVar[str] = "-"

    def start(self, networks, E):
        return {"w": networks.independent(2)}

    def local(self, server, state, agent):
        w = server["w"]
        losses = agent.example_losses(w)
        hard = (losses > agent.mean(losses).unsqueeze(-1)).float()  # train on examples with a loss above the mean
        theta = agent.sgd(w, weights=hard, freeze=("1.weight", "1.bias"))
        facts = {"counts": agent.class_counts(), "losses": agent.losses(w), "mean": agent.mean(losses)}
        return state, Upload(add={}, each={"theta": theta, "hard": agent.mean(hard), **facts})

    def aggregate(self, server, add, each, cohort):
        return server

    def predict(self, server, state, h):
        return h(server["w"])[0]


@every_engine
@pytest.mark.parametrize("batch", [None, 1], ids=["full batch", "single examples"])
def test_the_answers_of_an_agent(engine, batch, ragged):
    train = ff.Train(lr=0.1, steps=1, batch=batch) if batch is None else ff.Train(lr=0.1, epochs=1, batch=batch)
    setup = Setup.of(Curious(), ragged, 1, train=train, engine=engine)
    server, states = setup.start()
    each = setup.engine.round(setup.algorithm, server, states, 0, np.arange(5)).each
    for e in range(5):
        x, y = ragged.train(e)
        assert each["counts"][e].tolist() == [(y == c).sum().item() for c in range(3)]
        for m in range(2):
            network = setup.networks.network(m)
            losses = nn.functional.cross_entropy(network(x), y, reduction="none")
            assert torch.allclose(each["losses"][e, m], losses.mean(), atol=1e-5)
            assert torch.allclose(each["mean"][e, m], losses.mean(), atol=1e-5)
            hard = losses > losses.mean()
            assert torch.allclose(each["hard"][e, m], hard.float().mean(), atol=1e-6)
            theta = {k: v[e, m] for k, v in each["theta"].items()}
            assert torch.equal(theta["1.weight"], network[1].weight) and torch.equal(
                theta["1.bias"], network[1].bias
            )
            if batch is None:  # one step on mean(weight * loss)
                grad = torch.autograd.grad((hard * losses).mean(), network[3].weight)[0]
                assert torch.allclose(theta["3.weight"], network[3].weight - 0.1 * grad, atol=1e-6)
                continue
            rows = plan.batches(0, 0, np.array([e]), np.array([len(y)]), train).rows[0, : len(y), 0]
            for i in rows.tolist():  # one step per example that counts, in the order of the plan
                if hard[i]:
                    loss = nn.functional.cross_entropy(network(x[i : i + 1]), y[i : i + 1])
                    grads = torch.autograd.grad(loss, [network[3].weight, network[3].bias])
                    with torch.no_grad():
                        network[3].weight -= 0.1 * grads[0]
                        network[3].bias -= 0.1 * grads[1]
            assert torch.allclose(theta["3.weight"], network[3].weight, atol=1e-5)
