"""Which neurons of different networks are the same: Bayesian nonparametric matching, for PFNM and FedMA.

Yurochkin et al. 2019, arXiv 1905.12022, section 3; Wang et al. 2020, arXiv 2002.06440, section 2. Agent j of J has
H neurons v_jl in R^D, known with precision s_j: each a noisy copy of one of L atoms, theta_i ~ N(mu0, 1/p0), and no
two of the same atom. L is found, not given: gamma says how readily it grows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from focusfl.util.errors import require, require_integer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BIAS = 0.1  # prior mean of every bias; that of the weights is 0


class Rule(NamedTuple):
    mu0: Floats  # [D] prior mean of an atom
    p0: float  # its precision, 1 / sigma0
    gamma: float
    it: int  # passes in which every agent is matched again
    limit: int  # beyond this many atoms an agent may add only one


class Atoms(NamedTuple):
    S: Floats  # [L, D] mu0 p0 + sum s v over the neurons of the atom
    P: Floats  # [L, D] p0 + sum s
    m: Ints  # [L] how many neurons it has


def match(v: Floats, s: Floats, n: Floats, rule: Rule) -> tuple[Ints, Floats]:
    """The atom of each neuron, [J, H], and the atoms S/P, [L, D]; v [J, H, D], s [J, D], n [J] examples.

    The agents are matched in the order of n and then of the norm of v, so that their numbers mean nothing. What is
    not finite counts as 0: such a run ends with this round, in words for the user.
    """
    J, H, _ = v.shape
    order = np.lexsort((np.linalg.norm(v.reshape(J, -1), axis=1), -n))
    v, s = np.nan_to_num(v[order], nan=0, posinf=0, neginf=0), s[order]
    rng = np.random.default_rng(0)
    again = [int(j) for _ in range(rule.it) for j in rng.permutation(J)]
    z = {0: np.arange(H)}
    for j in [*range(1, J), *again]:
        z.pop(j, None)
        z, atoms = pooled(v, s, z, rule)
        z[j] = assigned(costs(v[j], s[j], atoms, J, rule), L=len(atoms.m))
    z, atoms = pooled(v, s, z, rule)
    return np.stack([z[int(j)] for j in np.argsort(order)]), atoms.S / atoms.P


def pooled(v: Floats, s: Floats, z: dict[int, Ints], rule: Rule) -> tuple[dict[int, Ints], Atoms]:
    """The atoms of the agents in z, and z without the numbers that no neuron has. Summed afresh, never subtracted:
    a weak prior would drown in the rounding."""
    L = 1 + max((int(i.max()) for i in z.values()), default=-1)
    S, P, m = np.tile(rule.mu0 * rule.p0, (L, 1)), np.full((L, v.shape[2]), rule.p0), np.zeros(L, np.int64)
    for j, i in z.items():
        S[i], P[i], m[i] = S[i] + s[j] * v[j], P[i] + s[j], m[i] + 1
    used = m > 0
    number = np.cumsum(used) - 1
    return {j: number[i] for j, i in z.items()}, Atoms(S[used], P[used], m[used])


def costs(v: Floats, s: Floats, atoms: Atoms, J: int, rule: Rule) -> Floats:
    """What is gained by giving each neuron v [H, D] each of the L atoms, or a new one: [H, L + new].

    atom i      sum[(s v + S)^2 / (s + P) - S^2 / P] + log(m / (J - m)), m at most 10 in the log
    k-th new    sum[(s v + mu0 p0)^2 / (s + p0) - (mu0 p0)^2 / p0] - 2 log k + 2 log(gamma / J)
    """
    (S, P, m), H, L = atoms, len(v), len(atoms.m)
    a, Q, prior = s * v, 1 / (s + P), rule.mu0 * rule.p0
    old = a**2 @ Q.T + 2 * a @ (S * Q).T + (S**2 * (Q - 1 / P)).sum(1)  # the square expanded: no [H, L, D]
    few = np.minimum(m, 10)
    # H - L is for an agent alone: the rule's limit could leave some of its neurons without an atom.
    k = np.arange(1, 1 + min(H, max(rule.limit - L, H - L, 1)))
    new = ((a + prior) ** 2 / (s + rule.p0) - prior**2 / rule.p0).sum(1)
    return np.hstack([old + np.log(few / (J - few)), new[:, None] - 2 * np.log(k) + 2 * np.log(rule.gamma / J)])


def assigned(cost: Floats, L: int) -> Ints:
    """The atom of each neuron, [H], by Hungarian maximisation; new atoms are numbered from L on, as they come."""
    from scipy.optimize import linear_sum_assignment  # half a second to import, and few methods need it

    atom = np.asarray(linear_sum_assignment(cost, maximize=True)[1], np.int64)
    new = atom >= L
    atom[new] = L + np.arange(new.sum())
    return atom


def largest(E: int, H: int, it: int, limit: int) -> int:
    """The most atoms that `match` can end with. The first match after the widest agent fills up to the limit, or
    adds one beyond it; each of the E - 2 + it E that follow can add one more. Never more atoms than neurons."""
    return min(E * H, max(limit, H + 1) + E - 2 + it * E)


def shares(counts: Floats) -> Floats:
    """count_jc / sum_j count_jc, [J, C]; equal shares of a class that nobody has."""
    total = counts.sum(0)
    return np.where(total > 0, counts / np.maximum(total, 1), 1 / len(counts))


def require_options(method: str, options: dict[str, float]) -> None:
    for k, value in options.items():
        least = {"it": 0, "limit": 1, "after": 1}.get(k)
        if least is None:
            require(f"{method}.{k}", value, value > 0, "above 0")
        else:
            require_integer(f"{method}.{k}", value, least)
