"""Rows and cohorts depend only on (seed, t, e)."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from focusfl.core.train import Train
from focusfl.engines import plan

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@given(sizes, st.integers(1, 50), st.integers(1, 3), st.integers(0, 2**40), st.integers(0, 1000))
def test_every_example_is_used_once_per_epoch(n, batch, epochs, seed, t):
    n = np.array(n)
    drawn = plan.batches(seed, t, np.arange(len(n)), n, Train(batch=batch, epochs=epochs))
    for c, size in enumerate(n):
        steps = [drawn.step(c, k) for k in range(drawn.size.shape[1])]
        used = np.concatenate(steps)
        assert sorted(used) == sorted(np.tile(np.arange(size), epochs))
        per_epoch = -(-size // batch)
        first = np.concatenate(steps[:per_epoch])
        assert sorted(first) == list(range(size))


@given(sizes, st.integers(1, 50), st.integers(1, 9), st.integers(0, 2**40))
def test_the_rows_of_an_agent_do_not_depend_on_the_other_agents(n, batch, steps, seed):
    n, train = np.array(n), Train(batch=batch, steps=steps)
    together = plan.batches(seed, 3, np.arange(len(n)), n, train)
    for e in range(len(n)):
        alone = plan.batches(seed, 3, np.array([e]), n[e : e + 1], train)
        assert alone.size.shape[1] == steps
        for k in range(steps):
            assert np.array_equal(alone.step(0, k), together.step(e, k))


@given(st.integers(0, 2**40), st.integers(0, 500), st.integers(1, 60), st.floats(0.01, 1))
def test_a_cohort_is_distinct_sorted_and_of_the_right_size(seed, t, E, fraction):
    chosen = plan.cohort(seed, t, E, fraction)
    assert len(chosen) == min(max(round(fraction * E), 1), E)
    assert (np.diff(chosen) > 0).all() and chosen[0] >= 0 and chosen[-1] < E


def test_every_agent_participates_with_the_same_probability():
    # 4000 rounds of 3 in 10: each agent 1200 expected, standard deviation sqrt(4000 * .3 * .7) = 29
    counts = np.bincount(np.concatenate([plan.cohort(7, t, 10, 0.3) for t in range(4000)]), minlength=10)
    assert (abs(counts - 1200) < 5 * 29).all()


def test_the_order_of_examples_is_uniform():
    # all 6 orders of 3 examples equally often: 6000 draws, 1000 expected each, standard deviation 29
    train = Train(batch=1, epochs=1)
    orders = [tuple(plan.batches(1, t, np.array([4]), np.array([3]), train).rows[0, :, 0]) for t in range(6000)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6 and all(abs(c - 1000) < 5 * 29 for c in counts)


def test_seed_round_agent_and_epoch_all_matter():
    def rows(seed, t, e):
        drawn = plan.batches(seed, t, np.array([e]), np.array([50]), Train(batch=50, epochs=2))
        return [tuple(drawn.step(0, k)) for k in (0, 1)]

    seen = [order for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)) for order in rows(*key)]
    assert len(set(seen)) == 8
