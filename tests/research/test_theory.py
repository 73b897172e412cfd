"""Theorems 1 to 4: what holds, where the printed bounds fail, and that the corrected bounds do not fail."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from focusfl.fairness.metrics import faa
from focusfl.research import theory as th
from focusfl.research.theory.check import check_all, report
from focusfl.research.theory.problems import (
    coin_problem,
    least_log_odds,
    linear_problem,
    logistic_problem,
    natural_start,
    run_fedavg,
    run_focus,
)

seeds = st.integers(0, 2**31)


def population(mus, w, delta, eta, K, T):
    """FOCUS on linear agents with infinitely many examples: models and log labels after each round."""
    log_pi, q = torch.zeros(len(mus), len(w), dtype=torch.float64), (1 - 2 * eta * delta**2) ** K
    for _ in range(T):
        log_pi = torch.log_softmax(log_pi - delta**2 * torch.cdist(mus, w).square(), 1)
        pi = log_pi.exp()
        mean = pi.T @ mus / pi.sum(0)[:, None]
        w = mean + q * (w - mean)
        yield w, log_pi


def least_odds(log_pi, clusters):
    own = torch.nn.functional.one_hot(clusters, log_pi.shape[1]).bool()
    return float((log_pi[own] - log_pi.masked_fill(own, -torch.inf).logsumexp(1)).min())


def in_ball(n, d, rng):
    """Random points of the unit ball, some inside and some on its surface."""
    steps = torch.randn(n, d, generator=rng, dtype=torch.float64)
    radius = torch.rand(n, 1, generator=rng).double() ** torch.randint(0, 3, (n, 1), generator=rng)
    return steps / steps.norm(dim=1, keepdim=True) * radius


def clustered(rng, M=None, ratio=0.49):
    """mu_e within r of M centres whose distances are at least R = 1."""
    M = M or int(torch.randint(2, 4, (), generator=rng))
    E = int(torch.randint(M, 9, (), generator=rng))
    centres = torch.randn(M, 3, generator=rng, dtype=torch.float64)
    centres = centres / th.separation(centres)
    clusters = torch.cat([torch.arange(M), torch.randint(0, M, (E - M,), generator=rng)])
    r = ratio * float(torch.rand((), generator=rng))
    return centres, clusters, centres[clusters] + r * in_ball(E, 3, rng), r


def outliers_around(rng, ratio=0.5):
    """E, E_k, r and mu_e for R = 1: the last E_k, fewer than half, are at least R from mu* = 0."""
    E = int(torch.randint(3, 12, (), generator=rng))
    E_k = int(torch.randint(1, (E - 1) // 2 + 1, (), generator=rng))
    r = ratio * float(torch.rand((), generator=rng))
    mus = in_ball(E, 2, rng)
    far = mus[E - E_k :] / mus[E - E_k :].norm(dim=1, keepdim=True)
    if torch.rand((), generator=rng) < 0.5:
        far = far[:1].expand(E_k, -1)
    return E, E_k, r, torch.cat([r * mus[: E - E_k], far * (1 + torch.rand(E_k, 1, generator=rng).double())])


# The engine does what the theorems are about


def test_a_sample_with_exact_moments_behaves_like_its_population():
    problem = linear_problem(E=6, outliers=2, r=0.2, delta=1.5)
    begin = natural_start(problem, 0.1)
    exact = population(problem.optima, begin, 1.5, 0.05, 3, 10)
    for (w, log_pi), (w_exact, log_pi_exact) in zip(run_focus(problem, begin, 0.05, 3, 10), exact, strict=True):
        torch.testing.assert_close(w, w_exact, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(log_pi, log_pi_exact, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("placement", ["random", "pairs", "aside", "apart"])
def test_exact_faa_is_what_training_reaches(placement):
    problem = linear_problem(E=7, outliers=2, r=0.2, delta=4.0, placement=placement)
    *_, (w, log_pi) = run_focus(problem, problem.centres, 1 / 64, 5, 10)
    exact = th.faa_focus_exact(problem.optima, problem.clusters, 4.0)
    assert faa(problem.excess(log_pi.exp() @ w)) == pytest.approx(exact, rel=1e-4, abs=1e-6)
    fedavg = faa(problem.excess(run_fedavg(problem, 1 / 64, 5, 10).expand_as(problem.optima)))
    assert fedavg == pytest.approx(th.faa_fedavg_exact(problem.optima, 4.0), rel=1e-4)


def test_natural_starts_have_the_requested_slack():
    for problem in (linear_problem(), logistic_problem(E=4, r=0.02, n=200)):
        for sideways in (False, True):
            begin = natural_start(problem, 0.05, sideways)
            assert th.slack(begin, problem.centres, problem.r, problem.mu, problem.L) == pytest.approx(0.05)


# Theorems 1 and 2: labels


def test_the_label_bound_starts_at_one_over_m_and_ends_at_one():
    assert th.pi_lower_bound(5, 0.0) == pytest.approx(1 / 5)
    assert th.pi_lower_bound(5, 100.0) == pytest.approx(1)
    odds = th.log_odds_lower(5, 3.0)
    assert th.pi_lower_bound(5, 3.0) == pytest.approx(1 / (1 + math.exp(-odds)))


@given(st.integers(2, 9), st.floats(0, 50), st.floats(0, 50))
def test_the_label_bound_grows_with_the_gains(M, a, b):
    assert th.pi_lower_bound(M, min(a, b)) <= th.pi_lower_bound(M, max(a, b))


@given(st.floats(0.1, 10), st.floats(0, 1), st.floats(0.1, 10), st.floats(1, 10))
def test_lemma_3_holds_as_printed(R, part, mu, kappa):
    delta = part * R * math.sqrt(mu) / (math.sqrt(mu) + math.sqrt(mu * kappa))
    assert th.gain(R, delta, mu, mu * kappa) >= th.gain_printed(R, delta, mu) - 1e-9 * mu * kappa * R**2


@given(seeds, st.floats(0.2, 3), st.floats(0, 1.5))
def test_labels_gain_by_the_slack_of_each_round(seed, delta, off):
    """Corrected theorem 1: Delta_t in place of Delta_0, for any start."""
    rng = torch.Generator().manual_seed(seed)
    centres, clusters, mus, r = clustered(rng)
    w = centres + off * in_ball(len(centres), 3, rng)
    gains, mu = 0.0, 2 * delta**2
    for after, log_pi in population(mus, w, delta, 0.1 / delta**2, 3, 8):
        gains += th.gain(th.separation(centres), th.slack(w, centres, r), mu, mu)
        assert least_odds(log_pi, clusters) >= th.log_odds_lower(len(w), gains) - 1e-8
        w = after


@given(seeds, st.floats(1, 8), st.floats(0, 1))
def test_theorem_1_holds_if_no_model_can_leave_its_ball(seed, delta, part):
    rng = torch.Generator().manual_seed(seed)
    centres, clusters, mus, r = clustered(rng, ratio=0.2)
    R, R_max, M, E = th.separation(centres), float(torch.cdist(centres, centres).max()), len(centres), len(mus)
    w = centres + part * (R / 2 - r) * in_ball(M, 3, rng)
    delta0, mu, q = th.slack(w, centres, r), 2 * delta**2, (1 - 0.1) ** 3
    gain, near = th.gain_printed(R, delta0, mu), (w - centres).norm(dim=1).tolist()
    shares = [[th.share_of_others(E, g, M, gain * t) for t in range(1, 9)] for g in clusters.bincount().tolist()]
    if min(th.natural_margin(R, R_max, r, delta0, share[0]) for share in shares) < 0:
        return
    begin = w
    for t, (w, log_pi) in enumerate(population(mus, begin, delta, 0.05 / delta**2, 3, 8), 1):
        assert th.slack(w, centres, r) >= delta0 - 1e-9
        assert least_odds(log_pi, clusters) >= th.log_odds_lower(M, t * gain) - 1e-8
        for m, off in enumerate((w - centres).norm(dim=1).tolist()):
            assert off <= th.w_upper(t, near[m], q, r, R_max, shares[m]) + 1e-9


def test_fails_as_printed_the_start_of_theorem_1_may_be_anywhere():
    """w_1 at distance 2 R on the far side meets the printed condition, but every agent prefers w_2 at first."""
    centres, mus = torch.tensor([[0.0], [1.0]]).double(), torch.tensor([[0.0], [1.0]]).double()
    w = torch.tensor([[-2.0], [1.0]]).double()
    assert th.slack_printed(w, centres, r=0) == 0.5
    [(_, log_pi)] = population(mus, w, 1.0, 0.1, 1, 1)
    assert log_pi[0].exp()[0] < 0.05 < 0.5 < th.pi_lower_bound(2, th.gain_printed(1, 0.5, 2))
    assert th.slack(w, centres, r=0) < 0


@pytest.mark.parametrize("sizes", [(5, 5), (9, 1)])
def test_fails_as_printed_labels_fall_behind_from_the_second_round_even_if_started_at_the_centres(sizes):
    centres = torch.tensor([[0.0], [1.0]]).double()
    clusters = torch.tensor([0] * sizes[0] + [1] * sizes[1])
    odds = [least_odds(p, clusters) for _, p in population(centres[clusters], centres, 1.0, 0.1, 5, 30)]
    gain = th.gain_printed(R=1, delta0=th.slack(centres, centres, r=0), mu=2)
    assert odds[0] == pytest.approx(gain)
    assert all(odd < t * gain - 0.05 for t, odd in enumerate(odds[1:], 2))


def test_fails_as_printed_a_natural_start_can_end_in_the_wrong_clusters():
    problem = linear_problem(E=9, r=0.4, delta=0.5, placement="pairs")
    begin = natural_start(problem, 0.05, sideways=True)
    *_, (_, log_pi) = population(problem.optima, begin, 0.5, 1.0, 5, 200)
    assert least_odds(log_pi, problem.clusters) < -10
    assert log_pi.argmax(1).tolist() in ([0] * 4 + [1] * 5, [1] * 4 + [0] * 5)  # the pairs are split
    shares = [th.share_of_others(9, g, 2, th.gain_printed(1, 0.05, 0.5)) for g in problem.sizes]
    assert min(th.natural_margin(1, 1, 0.4, 0.05, share) for share in shares) < 0


# Theorems 1 and 2: models


@pytest.mark.parametrize("outliers", [1, 2, 5])
def test_fails_as_printed_the_rate_does_not_depend_on_the_size_of_a_cluster(outliers):
    problem = linear_problem(E=10, outliers=outliers, r=0.0, delta=4.0)
    path = population(problem.optima, natural_start(problem, 0.3, sideways=True), 4.0, 0.02 / 16, 1, 30)
    off = [(w - problem.centres).square().sum(1) for w, _ in path]
    factor = off[-1] / off[-2]
    torch.testing.assert_close(factor, torch.full_like(factor, th.rate(0.02 / 16, 32, 32).value), rtol=1e-6, atol=0)
    assert factor[0] > th.rate_printed(0.02 / 16, problem.sizes[0], 2, 32, 32).value


def test_fails_as_printed_the_right_hand_side_of_theorem_1_depends_on_the_unit_of_length():
    """The same agents in metres and in millimetres."""
    met = []
    for unit in (1.0, 1000.0):
        delta, problem = 4 / unit, linear_problem(R=unit, r=0.1 * unit, delta=4 / unit, sigma=0)
        begin = natural_start(problem, 0.2 * unit)
        *_, (w, _) = population(problem.optima, begin, delta, 0.02 / delta**2, 1, 8)
        gain = th.gain_printed(problem.R, 0.2 * unit, problem.mu)
        off, near = float((w - problem.centres)[0].norm()), float((begin - problem.centres)[0].norm())
        bound = th.w_upper_printed(8, 1, 10, 9, 2, 0.02 / delta**2, delta, 0, problem.r, near, gain)
        assert not bound.why
        met.append((off**2 / unit**2, off**2 <= bound.value))
    assert met[0][0] == pytest.approx(met[1][0])
    assert [holds for _, holds in met] == [True, False]


def test_the_printed_bound_of_the_models_fails_for_a_large_cluster_and_small_steps():
    """r = 0 and decisive labels: ||w - w*||^2 falls by (1 - 2 eta delta^2)^2 a step, in 150 to 0.04 x 0.5485."""
    problem = linear_problem(E=100, R=1.0, r=0.0, delta=4.0)
    *_, (w, _) = run_focus(problem, natural_start(problem, 0.3), 0.001 / 16, 1, 150)
    off = float((w - problem.centres)[0].square().sum())
    assert off == pytest.approx(0.2**2 * (1 - 2 * 0.001) ** 300, rel=1e-4)
    gain = th.gain_printed(1.0, 0.3, problem.mu)
    bound = th.w_upper_printed(150, 1, 100, 99, 2, 0.001 / 16, 4.0, 0.1, 0.0, 0.2, gain)
    assert not bound.why and bound.value < 0.82 * off


def test_constants_say_when_they_are_meaningless():
    step = th.rate_printed(eta=1 / 4, gamma=9, M=2, mu=2, L=2)  # the largest eta that theorem 1 allows, delta = 1
    assert step.value < 0 and step.why
    step = th.rate_printed(eta=0.05, gamma=9, M=2, mu=2, L=2)
    assert th.A_printed(10, 2, 10, 1.0, step, gain=0.5).value < 0
    assert th.A_printed(10, 2, 10, 1.0, step, gain=0.5).why
    assert th.B_printed(10, 2, 1, 10, 1.0, 2, 2, step, gain=0.5).why
    assert not th.A_printed(10, 2, 1, 1.0, step, gain=5.0).why


def test_w_bound_ends_at_r():
    shares = [th.share_of_others(10, 5, 2, 3.0 * t) for t in range(1, 101)]
    assert th.w_upper(100, 0.4, 0.5, 0.1, 1.0, shares) == pytest.approx(0.1)


# Theorem 3


@given(seeds)
def test_focus_stays_below_the_corrected_bound(seed):
    rng = torch.Generator().manual_seed(seed)
    _, clusters, mus, r = clustered(rng)
    largest = int(clusters.bincount().max())
    assert th.faa_focus_exact(mus, clusters, 2.0) <= th.faa_focus_upper(r, 2.0, largest) + 1e-9


@pytest.mark.parametrize("E", [3, 4, 5, 10, 50])
def test_fails_as_printed_focus_may_exceed_delta2_r2(E):
    """One agent at +r, the others at -r: (2 (E - 2) / (E - 1))^2 times r^2, which is r^2 only for E = 3."""
    problem = linear_problem(E=E, r=0.1, delta=2.0, placement="apart")
    exact = th.faa_focus_exact(problem.optima, problem.clusters, 2.0)
    assert exact == pytest.approx(th.faa_focus_upper(0.1, 2.0, E - 1))
    assert (exact > th.faa_focus_upper_printed(0.1, 2.0) * 1.001) == (E > 3)


@given(seeds)
def test_the_printed_bound_of_focus_holds_around_the_mean(seed):
    rng = torch.Generator().manual_seed(seed)
    _, clusters, mus, _ = clustered(rng)
    means = torch.stack([mus[clusters == m].mean(0) for m in range(int(clusters.max()) + 1)])
    r = float((mus - means[clusters]).norm(dim=1).max())
    assert th.faa_focus_exact(mus, clusters, 1.0) <= th.faa_focus_upper_printed(r, 1.0) + 1e-9


@given(seeds)
def test_fedavg_stays_above_the_corrected_bound(seed):
    E, E_k, r, mus = outliers_around(torch.Generator().manual_seed(seed))
    assert th.faa_fedavg_exact(mus, 2.0) >= th.faa_fedavg_lower(E, 1.0, r, 2.0, E_k).value - 1e-9
    rest = mus[: E - E_k] - mus[: E - E_k].mean(0)
    mus, r = torch.cat([rest, mus[E - E_k :]]), float(rest.norm(dim=1).max())
    assert th.faa_fedavg_exact(mus, 2.0) >= th.faa_fedavg_lower(E, 1.0, r, 2.0, E_k, centred=True).value - 1e-9


@pytest.mark.parametrize("E", [3, 4, 10, 100])
@pytest.mark.parametrize("r", [0.01, 0.1, 0.2])
def test_fails_as_printed_fedavg_may_be_fairer_with_all_agents_displaced_towards_the_outlier(E, r):
    problem = linear_problem(E=E, r=r, placement="aside")
    exact = th.faa_fedavg_exact(problem.optima, 1.0)
    assert exact == pytest.approx(th.faa_fedavg_lower(E, 1.0, r, 1.0).value)
    assert exact < th.faa_fedavg_lower_printed(E, 1.0, r, 1.0).value - 1e-6


def test_fails_as_printed_several_outliers():
    problem = linear_problem(E=10, outliers=2, r=0.1, placement="aside")
    exact = th.faa_fedavg_exact(problem.optima, 1.0)
    assert th.faa_fedavg_lower(10, 1.0, 0.1, 1.0, 2).value == pytest.approx(exact)
    assert exact < th.faa_fedavg_lower_printed(10, 1.0, 0.1, 1.0, 2).value


def test_fails_as_printed_even_if_mu_star_is_the_mean():
    """In pairs, with r > R / E: the proof's last step gives - r^2 where + r^2 is printed."""
    problem = linear_problem(E=9, r=0.3, placement="pairs")
    exact = th.faa_fedavg_exact(problem.optima, 1.0)
    assert exact == pytest.approx(th.faa_fedavg_lower(9, 1.0, 0.3, 1.0, centred=True).value)
    assert exact < th.faa_fedavg_lower_printed(9, 1.0, 0.3, 1.0).value
    last_step = ((9 - 1) / 9) ** 2 - (0.3 + 1 / 9) ** 2
    assert last_step == pytest.approx(th.faa_fedavg_lower_printed(9, 1.0, 0.3, 1.0).value - 2 * 0.3**2)
    assert last_step <= exact


def test_without_spread_printed_and_corrected_agree():
    for E in (3, 5, 20):
        exact = th.faa_fedavg_exact(linear_problem(E=E, r=0.0).optima, 1.0)
        assert exact == pytest.approx((E - 2) / E)
        assert exact == pytest.approx(th.faa_fedavg_lower_printed(E, 1.0, 0.0, 1.0).value)
        assert exact == pytest.approx(th.faa_fedavg_lower(E, 1.0, 0.0, 1.0).value)


def test_fails_as_printed_focus_is_not_always_fairer():
    """R > 2 r and R > 2 r / (E - 2), which is all that the paper requires."""
    problem = linear_problem(E=3, r=0.45, placement="pairs")
    focus = th.faa_focus_exact(problem.optima, problem.clusters, 1.0)
    assert focus == pytest.approx(0.2025)
    assert focus > 1.5 * th.faa_fedavg_exact(problem.optima, 1.0)


@given(seeds)
def test_focus_is_fairer_if_one_outlier_is_at_least_three_r_away(seed):
    E, E_k, _, mus = outliers_around(torch.Generator().manual_seed(seed), ratio=1 / 3)
    mus = mus[: E - E_k + 1]  # at least two agents and one outlier
    clusters = torch.tensor([0] * (len(mus) - 1) + [1])
    assert th.faa_focus_exact(mus, clusters, 1.0) < th.faa_fedavg_exact(mus, 1.0)


def test_three_r_cannot_be_lowered():
    """R = 2.8 r and many agents: one at +r, the others near -r, and the outlier beyond them."""
    E, angle = 2001, 0.2
    near = torch.tensor([[-math.cos(angle), math.sin(angle)], [-math.cos(angle), -math.sin(angle)]]).repeat(1000, 1)
    mus = torch.cat([torch.tensor([[1.0, 0.0]]), near, torch.tensor([[-2.8, 0.0]])]).double()
    clusters = torch.tensor([0] * E + [1])
    assert th.faa_focus_exact(mus, clusters, 1.0) > th.faa_fedavg_exact(mus, 1.0)


def test_fedavg_is_perfectly_fair_to_clusters_of_one_size():
    """Why E_k < E / 2: three clusters at the corners of a triangle, two agents each."""
    corners = torch.tensor([[1.0, 0.0], [-0.5, math.sqrt(0.75)], [-0.5, -math.sqrt(0.75)]], dtype=torch.float64)
    assert th.faa_fedavg_exact(corners.repeat(2, 1), 1.0) == pytest.approx(0, abs=1e-12)
    assert th.faa_fedavg_lower(4, 1.0, 0.0, 1.0, outliers=2).why


# Theorem 4


def minimum(x, y, p, ridge):
    """argmin of sum_i p_i (ln(1 + e^z_i) - y_i z_i) + ridge/2 ||w||^2, by Newton's method."""
    w = torch.zeros(x.shape[1], dtype=x.dtype)
    for _ in range(30):
        s = torch.sigmoid(x @ w)
        hessian = (x.T * (p * s * (1 - s))) @ x + ridge * torch.eye(len(w), dtype=x.dtype)
        w = w - torch.linalg.solve(hessian, x.T @ (p * (s - y)) + ridge * w)
    return w


@given(seeds, st.floats(0, 0.05), st.floats(0.1, 2))
def test_corrected_theorem_4_on_random_populations(seed, spread, ridge):
    """Agents weight the same 30 examples differently; the outlier has other labels."""
    rng = torch.Generator().manual_seed(seed)
    E, n = int(torch.randint(3, 9, (), generator=rng)), 30
    x = torch.randn(n, 2, generator=rng, dtype=torch.float64)
    y = (x[:, 0] > 0).double()
    p = 1 / n * (1 + spread * (2 * torch.rand(E, n, generator=rng).double() - 1))
    p /= p.sum(1, keepdim=True)
    ys = [y] * (E - 1) + [1 - y]
    r = float(torch.pdist(p[:-1], p=1).max()) / 2

    def examples(e, w):
        return torch.nn.functional.softplus(x @ w) - ys[e] * (x @ w) + ridge / 2 * w @ w

    def excess(e, w):
        return float(p[e] @ (examples(e, w) - examples(e, optima[e])))

    optima = torch.stack([minimum(x, ys[e], p[e], ridge) for e in range(E)])
    cluster = minimum(x, y, p[:-1].mean(0), ridge)
    stack = torch.cat([x, x]), torch.cat([y, 1 - y]), torch.cat([p[:-1].sum(0), p[-1]]) / E
    everyone = minimum(*stack, ridge)
    models = [*optima, optima[:-1].mean(0), optima.mean(0), cluster, everyone]
    G = max(float(examples(e, w).max()) for e in (0, -1) for w in models)
    mu, L = ridge, ridge + 0.25 * float(max(torch.linalg.eigvalsh((x.T * q) @ x).max() for q in p))
    R = min(excess(-1, w) for w in optima[:-1])
    B = th.faa_focus_upper_convex(E, G, r)
    for w in (cluster, optima[:-1].mean(0)):
        assert max(excess(e, w) for e in range(E - 1)) <= B + 1e-9
    for w, mean in ((everyone, False), (optima.mean(0), True)):
        risks = torch.tensor([excess(e, w) for e in range(E)])
        bound = th.faa_fedavg_lower_convex(E, R, B, mu, L, mean_of_optima=mean)
        assert bound.why or faa(risks) >= bound.value - 1e-6


def test_fails_as_printed_theorem_4_focus():
    """One coin with 9 heads of 20 and eight with none: (8/9 9/20)^2 = 0.16, but B = 2 0.45 / 9 = 0.1."""
    problem = coin_problem([9] + [0] * 8 + [20])
    exact = th.faa_focus_exact(problem.optima, problem.clusters, 1.0)
    assert exact == pytest.approx(0.16)
    assert th.faa_focus_upper_convex_printed(10, problem.G, problem.total_variation) == pytest.approx(0.1)
    assert exact <= th.faa_focus_upper_convex(10, problem.G, problem.total_variation)


@pytest.mark.parametrize("E", [3, 4, 10, 100])
def test_fails_as_printed_theorem_4_fedavg_contradicts_theorem_3(E):
    """Equal quadratic losses and one outlier, r = B = 0: exactly (E - 2) / E R, as both corrected bounds say."""
    problem = linear_problem(E=E, r=0.0)
    exact = th.faa_fedavg_exact(problem.optima, 1.0)
    assert problem.outlier_gap == pytest.approx(1)
    assert th.faa_fedavg_lower_convex_printed(E, 1.0, 0.0, 2, 2).value > exact * 1.001
    for mean in (False, True):
        assert th.faa_fedavg_lower_convex(E, 1.0, 0.0, 2, 2, mean).value == pytest.approx(exact)


def test_fedavg_converges_to_the_mean_of_the_optima_only_with_many_local_steps():
    problem = logistic_problem(E=5, n=200, ridge=0.1)
    x, mean = problem.fed.training.x[:200].double(), problem.optima.mean(0)
    y = problem.fed.training.y.reshape(5, 200).double().mean(0)
    p = torch.full((200,), 1 / 200, dtype=torch.float64)
    eta = 1 / (2 * (problem.mu + problem.L))
    one, many = run_fedavg(problem, eta, 1, 200), run_fedavg(problem, eta, 80, 4)
    torch.testing.assert_close(one, minimum(x, y, p, 0.1), atol=1e-4, rtol=0)
    torch.testing.assert_close(many, mean, atol=1e-4, rtol=0)
    assert (one - mean).norm() > 0.02


def test_total_variation_and_optima_of_the_logistic_agents_are_correct():
    problem = logistic_problem(E=5, r=0.1, n=200)
    y = problem.fed.training.y.reshape(5, 200)
    differ = (y[:4, None] != y[None, :4]).double().mean(2)
    assert torch.equal(differ, 0.1 * (1 - torch.eye(4)).double())
    assert problem.excess(problem.optima).abs().max() < 1e-12
    assert (problem.excess(problem.optima + 0.01) > 0).all()


# The command


def test_every_corrected_bound_holds_or_says_why_not():
    calls = []
    rows = check_all(quick=True, watch=lambda done, total: calls.append((done, total)))
    assert calls == [(i, 5) for i in range(1, 6)]
    for row in rows:
        assert row["holds"] is (None if row["why"] else row["holds"])
        assert row["statement"] == "printed" or row["holds"] or row["why"], row
    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text()
    assert [line for line in report(rows).splitlines() if line not in page] == []


def test_logistic_labels_stay_above_the_corrected_bound():
    problem = logistic_problem(E=4, n=200)
    begin = natural_start(problem, 0.1)
    R, r, mu, L, gains, w = problem.R, problem.r, problem.mu, problem.L, 0.0, begin
    for after, log_pi in run_focus(problem, begin, 0.5, 3, 10):
        gains += th.gain(R, th.slack(w, problem.centres, r, mu, L), mu, L)
        assert least_log_odds(problem, log_pi) >= th.log_odds_lower(2, gains) - 1e-4
        w = after
