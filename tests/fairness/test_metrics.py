"""Fairness measures are what their equations say."""

from itertools import combinations

import torch
from hypothesis import given
from hypothesis import strategies as st

from focusfl.fairness import metrics

risks = st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=20).map(torch.tensor)


@given(risks)
def test_faa_is_the_largest_pairwise_gap(excess):
    brute = max(abs(a - b) for a, b in combinations(excess.tolist(), 2))
    assert abs(metrics.faa(excess) - brute) <= 1e-4


@given(risks, st.floats(-10, 10, width=32))
def test_faa_ignores_what_all_agents_pay_alike(excess, shift):
    assert abs(metrics.faa(excess + shift) - metrics.faa(excess)) <= 1e-4


@given(risks)
def test_equal_agents_are_perfectly_fair(excess):
    assert metrics.faa(torch.full_like(excess, excess[0].item())) == 0


@given(risks)
def test_no_agent_loses_more_than_the_agnostic_loss(loss):
    assert loss.max().item() == metrics.agnostic_loss(loss) == loss[metrics.worst_agent(loss)].item()
    assert metrics.average(loss) <= metrics.agnostic_loss(loss) + 1e-4


def test_excess_risk_is_not_clipped():
    assert metrics.excess_risk(torch.tensor([0.1]), torch.tensor([0.3])).item() < 0


def test_accuracy_parity_by_hand():
    # accuracies 0.2, 0.4, 0.9: mean 0.5, squared deviations 0.09 + 0.01 + 0.16 = 0.26
    assert abs(metrics.accuracy_parity(torch.tensor([0.2, 0.4, 0.9])) - (0.26 / 3) ** 0.5) < 1e-6


@given(st.permutations([0, 1, 2]))
def test_adjusted_rand_index_ignores_names(names):
    true = torch.tensor([0, 0, 1, 1, 2])
    assert metrics.adjusted_rand_index(torch.tensor(names)[true], true) == 1


def test_adjusted_rand_index_by_hand():
    # {0,1},{2,3} against {0,1,2},{3}: 6 pairs; together in both 1, in the first 2, in the second 3;
    # expected 2*3/6 = 1, maximum (2+3)/2 = 2.5, index (1-1)/(2.5-1) = 0
    assert metrics.adjusted_rand_index(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 1])) == 0
