"""Agents that join and leave: who participates in a round, engines and resumed runs agree, what FOCUS does."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import focusfl as ff
from focusfl.core.tree import flatten, take
from focusfl.engines import ENGINES, plan
from focusfl.engines.one_agent import LocalAgent
from focusfl.fairness.metrics import adjusted_rand_index
from focusfl.research.paper.cells import Cell
from focusfl.run import checkpoint
from focusfl.run.best_loss import Surrogates
from focusfl.run.experiment import Experiment, apply_changes
from focusfl.run.loop import run
from focusfl.run.presence import EVERYBODY, Presence
from focusfl.run.setup import Setup
from focusfl.util import files
from focusfl.util.errors import InputError

TRAIN = ff.Train(lr=0.1, steps=4, batch=8)
CHANGES = {"joins": {1: 3, 4: 2}, "leaves": {0: 4, 4: 6}}  # of five agents
PLAIN = {"data": "rotated-digits", "algorithms": ["fedavg"]}

events = st.dictionaries(st.integers(1, 11), st.integers(1, 9))  # agent 0 is always present


@st.composite
def presences(draw):
    joins = draw(events)
    leaves = {e: t for e, t in draw(events).items() if t > joins.get(e, 1)}
    return joins, leaves, Presence.of(joins, leaves, 12, 9)


@given(presences(), st.integers(0, 8))
def test_an_agent_is_present_from_its_first_round_to_the_one_before_it_leaves(drawn, t):
    joins, leaves, presence = drawn
    present = [e for e in range(12) if joins.get(e, 1) <= t + 1 < leaves.get(e, 10)]
    assert presence.agents(t, 12).tolist() == present
    new = [] if t == 0 else sorted({*present} - {*presence.agents(t - 1, 12).tolist()})
    assert presence.joining(t).tolist() == new


@given(presences(), st.integers(0, 2**40), st.integers(0, 8), st.floats(0.01, 1))
def test_a_cohort_is_a_fraction_of_the_agents_that_are_present(drawn, seed, t, fraction):
    present = drawn[2].agents(t, 12)
    cohort = plan.cohort(seed, t, 12, fraction, present)
    assert len(cohort) == min(max(round(fraction * len(present)), 1), len(present))
    assert (np.diff(cohort) > 0).all() and set(cohort) <= set(present)


@given(st.integers(0, 2**40), st.integers(0, 500), st.integers(1, 60), st.floats(0.01, 1))
def test_with_everybody_present_cohorts_do_not_change(seed, t, E, fraction):
    everybody = plan.cohort(seed, t, E, fraction, EVERYBODY.agents(t, E))
    assert np.array_equal(everybody, plan.cohort(seed, t, E, fraction))


def test_cohorts_are_those_of_earlier_versions():
    assert plan.cohort(0, 0, 10, 0.3).tolist() == [0, 6, 8]
    assert plan.cohort(7, 3, 10, 0.3).tolist() == [2, 5, 8]
    assert plan.cohort(3, 2, 30, 0.1).tolist() == [0, 12, 24]


def test_all_agents_that_are_present_have_the_same_chance():
    # 4000 rounds of 2 in 6 that are present: 1333 expected, standard deviation sqrt(4000 / 3 * 2 / 3) = 30
    present = np.array([1, 2, 4, 5, 8, 9])
    counts = np.bincount(np.concatenate([plan.cohort(7, t, 10, 0.3, present) for t in range(4000)]), minlength=10)
    assert (abs(counts[present] - 4000 / 3) < 5 * 30).all() and counts.sum() == counts[present].sum()


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"joins": {5: 2}}, r"joins\.5 = 2: .*0 to 4"),
        ({"leaves": {-1: 2}}, r"leaves\.-1 = 2: .*0 to 4"),
        ({"joins": {1: 0}}, r"joins\.1 = 0: .*1 to 6"),
        ({"leaves": {1: 7}}, r"leaves\.1 = 7: .*1 to 6"),
        ({"leaves": {1: 1}}, r"leaves\.1 = 1: .*after 1"),
        ({"joins": {1: 4}, "leaves": {1: 4}}, r"leaves\.1 = 4: .*after 4"),
        ({"joins": dict.fromkeys(range(5), 2)}, r"round 1: .*join"),
        ({"joins": {0: 5}, "leaves": dict.fromkeys(range(1, 5), 3)}, r"round 3: .*leave"),
        ({"joins": [1]}, r"joins = \[1\]: .*\{7: 40\}"),
        ({"joins": {"1": 2}}, r"joins = \{'1': 2\}"),
    ],
)
def test_impossible_presence_is_refused(options, place, ragged):
    with pytest.raises(InputError, match=place):
        ff.fit(ff.FedAvg(), ragged, rounds=6, **options)


def test_an_experiment_has_joins_and_leaves_only_where_they_are_set():
    old = Experiment.parse(PLAIN)
    new = Experiment.parse(apply_changes(dict(PLAIN), ["joins={ 7 = 40 }", "leaves.3=60"]))
    assert (new.settings.joins, new.settings.leaves) == ({7: 40}, {3: 60})
    assert new.setups(0)["fedavg"].presence == Presence(((7, 40),), ((3, 60),))
    assert new.model_dump(mode="json")["joins"] == {"7": 40}  # identifies a folder of results
    assert not {"joins", "leaves"} & (old.model_dump().keys() | Cell(old, "fedavg", 0).spec.keys())
    assert Cell(old, "fedavg", 0).key == "064ad5813725f99a" != Cell(new, "fedavg", 0).key
    with pytest.raises(InputError, match=r"mine.toml: joins = 'x'"):
        Experiment.parse(apply_changes(dict(PLAIN), ["joins.x=3"]), "mine.toml")


def test_presence_changes_the_fingerprint_only_where_it_changes_the_run(ragged):
    plain, none, first, later = (
        Setup.of(ff.FedAvg(), ragged, 6, joins=joins).fingerprint for joins in (None, {}, {3: 1}, {3: 2})
    )
    assert plain == none == first != later


def final(algorithm, fed, engine, rounds=7, train=TRAIN, **options):
    *_, done = run(Setup.of(algorithm, fed, rounds, train=train, engine=engine, **options))
    return flatten({"server": done.server, "agents": done.states, "loss": done.scores.loss})


def close(a, b):
    assert a.keys() == b.keys()
    for k in a:
        torch.testing.assert_close(a[k], b[k], rtol=1e-5, atol=1e-5)


METHODS = [ff.FedAvg(), ff.Focus(M=2), ff.Focus(M=2, init="split"), ff.Ditto(), ff.AFL(), ff.CFL(), ff.IFCA(M=2)]


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("algorithm", METHODS, ids=repr)
def test_serial_and_vectorised_agree(algorithm, fraction, ragged):
    close(*(final(algorithm, ragged, engine, fraction=fraction, **CHANGES) for engine in ENGINES))


@pytest.mark.flower
def test_flowers_simulation_agrees():
    """Also on the state of who joins: a node has one from before, and Ditto's first state is the server's model."""
    pytest.importorskip("flwr")
    from helpers.flower_people import SIZES, people
    from helpers.flower_people import TRAIN as train

    options = {"joins": {1: 3}, "leaves": {0: 4}, "rounds": 4, "train": train}
    close(*(final(ff.Ditto(), people(SIZES), engine, **options) for engine in ("serial", "flower")))


def test_an_app_between_machines_has_no_such_options():
    pytest.importorskip("flwr")
    from focusfl.flower.apps.configured import RunConfig

    for key in ("joins", "leaves.3"):
        with pytest.raises(InputError, match=key.split(".")[0]):
            RunConfig({"data.name": "rotated-digits", key: 4})


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", [ff.Focus(M=2), ff.Ditto()], ids=lambda a: a.name)
def test_killed_before_and_after_agents_join_and_resumed_is_the_same_to_the_bit(
    algorithm, engine, ragged, tmp_path
):
    whole, cut = (files.make_folder(tmp_path / name) for name in ("whole", "cut"))
    setup = Setup.of(algorithm, ragged, 7, train=TRAIN, engine=engine, fraction=0.7, checkpoint_every=1, **CHANGES)
    list(run(setup, whole))
    for until in (1, 1, 2, 1):  # rounds before the next kill
        list(itertools.islice(run(setup, cut, resume=True), until))
    assert [done.t for done in run(setup, cut, resume=True)] == [6, 7]
    assert (whole / checkpoint.NAME).read_bytes() == (cut / checkpoint.NAME).read_bytes()


def test_an_agent_that_joins_starts_from_the_current_server(ragged):
    algorithm = ff.Ditto()
    setup = Setup.of(algorithm, ragged, 4, train=TRAIN, engine="serial", joins={2: 4})
    rounds = list(itertools.islice(run(setup), 3))
    server, first = rounds[-1].server, setup.start()[1]
    for k, v in take(first, 2)["v"].items():
        assert torch.equal(v, take(rounds[-1].states, 2)["v"][k])  # until then it holds a first state
    agent = LocalAgent(setup.task, ragged.train(2), TRAIN, TRAIN.lr, 0, 3, 2)
    alone, _ = algorithm.local(server, algorithm.enroll(server), agent)
    *_, last = run(setup)
    assert all(torch.equal(v, take(last.states, 2)["v"][k]) for k, v in alone["v"].items())


def test_an_absent_agent_neither_trains_nor_counts(ragged):
    """FedAvg of three agents is FedAvg of five, two of which join only in the last round."""
    late = Setup.of(ff.FedAvg(), ragged, 4, train=TRAIN, engine="serial", joins={3: 4, 4: 4})
    three = ff.Federation.from_agents(
        [tuple(ragged.train(e)) for e in range(3)],
        test=[tuple(ragged.test(e)) for e in range(3)],
        classes=3,
        model=ragged.recipe.model,
    )
    few = Setup.of(ff.FedAvg(), three, 4, train=TRAIN, engine="serial")
    a, b = ([done.scores.loss for done in run(setup)] for setup in (late, few))
    assert all(torch.equal(x[:3], y) for x, y in zip(a[:3], b[:3], strict=True))
    assert not torch.equal(a[3][:3], b[3]) and all(len(x) == 5 for x in a)


def test_best_losses_do_not_depend_on_presence(ragged):
    setup = Setup.of(ff.FedAvg(), ragged, 3, joins={1: 2}, leaves={4: 3})
    plain = setup.changed(joins={}, leaves={})
    for kind in ("true", "agent"):
        assert torch.equal(*(Surrogates().best(s.changed(bayes=kind)).loss for s in (setup, plain)))


CLUSTERS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
both_starts = pytest.mark.parametrize("init", ["tied", "split"])


def digits(init, **options):
    """After each round: labels, accuracies and models. Eight agents, four of them turned by 90 degrees."""
    fed = ff.data.rotated_digits(turns=CLUSTERS.tolist())
    setup = Setup.of(ff.Focus(M=2, init=init), fed, 40, **options)
    for done in run(setup):
        pi = setup.engine.labels(setup.algorithm, done.server, done.states)
        assert torch.allclose(pi.sum(1), torch.ones(8), atol=1e-5)
        assert all(torch.isfinite(v).all() for v in flatten({"s": done.server, "a": done.states}).values())
        yield pi, done.scores, {k: v.clone() for k, v in done.server["w"].items()}


@pytest.mark.slow
@both_starts
def test_an_agent_that_joins_late_is_in_the_right_cluster_after_one_round(init):
    rounds = list(digits(init, joins={3: 30}))
    assert torch.allclose(rounds[28][0][3], torch.tensor(0.5))  # before: a first label
    for pi, scores, _ in rounds[29:]:
        found = pi.argmax(1)
        assert found[3] == found[0] == found[1] == found[2] != found[4]
        assert scores.acc[3] > scores.acc[:3].mean() - 0.1


@pytest.mark.slow
@both_starts
def test_an_agent_that_leaves_keeps_its_label_and_so_do_the_others(init):
    rounds = list(digits(init, leaves={3: 15, 5: 15}))
    before, after = rounds[13][0], rounds[-1][0]
    assert torch.equal(before[[3, 5]], after[[3, 5]])
    stay = [0, 1, 2, 4, 6, 7]
    assert adjusted_rand_index(after[stay].argmax(1), CLUSTERS[stay]) == 1


def test_the_model_of_a_cluster_that_left_does_not_change():
    """Labels are settled early with init="split"; then no other agent trains that model."""
    rounds = list(digits("split", leaves=dict.fromkeys(range(4, 8), 20)))
    (pi, before, w), (_, after, w_last) = rounds[18], rounds[-1]
    m = int(pi[4].argmax())
    for k, v in w.items():
        torch.testing.assert_close(w_last[k][m], v[m], rtol=0, atol=1e-5)
    torch.testing.assert_close(after.loss[4:], before.loss[4:], rtol=0, atol=1e-3)


@pytest.mark.slow
@both_starts
@pytest.mark.parametrize(
    "options", [{"leaves": dict.fromkeys(range(4, 8), 20)}, {"joins": dict.fromkeys(range(4, 8), 20)}]
)
def test_numbers_stay_finite_if_a_whole_cluster_joins_or_leaves(init, options):
    for pi, scores, _ in digits(init, **options):
        assert torch.isfinite(scores.loss).all() and torch.isfinite(pi).all()
