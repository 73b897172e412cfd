"""Bayesian nonparametric matching of the neurons of different networks, for PFNM and FedMA.

Yurochkin et al. 2019, arXiv 1905.12022, section 3; Wang et al. 2020, arXiv 2002.06440, section 2. Agent j of J
has H neurons v_jl in R^D, known with precision s_j. Each is a noisy copy of one of L atoms, theta_i ~ N(mu0,
1/p0), and no two neurons of an agent have the same atom. The matching finds L; the larger gamma, the more readily
L grows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from focusfl.util.errors import require, require_integer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BIAS_PRIOR = 0.1  # prior mean of every bias; the prior mean of weights is 0


class MatchOptions(NamedTuple):
    """The prior of the atoms, and how the matching proceeds.

    Attributes:
        mu0: The prior mean of an atom, [D].
        p0: The precision of an atom, 1 / sigma0.
        gamma: How readily a neuron becomes a new atom.
        it: The number of passes in which every agent is matched again.
        limit: Beyond this number of atoms an agent may add only one.
    """

    mu0: Floats
    p0: float
    gamma: float
    it: int
    limit: int


class Atoms(NamedTuple):
    """L atoms.

    Attributes:
        S: mu0 p0 + sum of s v over the neurons of the atom, [L, D].
        P: p0 + sum of s, [L, D].
        m: The number of neurons of the atom, [L].
    """

    S: Floats
    P: Floats
    m: Ints


def match(v: Floats, s: Floats, n: Floats, options: MatchOptions) -> tuple[Ints, Floats]:
    """Match the neurons of J agents.

    The agents are matched in the order of n, then of the norm of v, so that their numbering does not matter. Values
    that are not finite count as 0: the run stops after such a round and reports that it diverged.

    Args:
        v: The neurons, [J, H, D].
        s: Their precisions, [J, D].
        n: The agents' numbers of examples, [J].
        options: The prior of the atoms, and how the matching proceeds.

    Returns:
        The atom of each neuron, [J, H], and the atoms S/P, [L, D].
    """
    J, H, _ = v.shape
    order = np.lexsort((np.linalg.norm(v.reshape(J, -1), axis=1), -n))
    v, s = np.nan_to_num(v[order], nan=0, posinf=0, neginf=0), s[order]
    rng = np.random.default_rng(0)
    again = [int(j) for _ in range(options.it) for j in rng.permutation(J)]
    z = {0: np.arange(H)}
    for j in [*range(1, J), *again]:
        z.pop(j, None)
        z, atoms = pool(v, s, z, options)
        z[j] = assign_atoms(gains(v[j], s[j], atoms, J, options), L=len(atoms.m))
    z, atoms = pool(v, s, z, options)
    return np.stack([z[int(j)] for j in np.argsort(order)]), atoms.S / atoms.P


def pool(v: Floats, s: Floats, z: dict[int, Ints], options: MatchOptions) -> tuple[dict[int, Ints], Atoms]:
    """Compute the atoms of the agents in z, and renumber z so that every atom has a neuron.

    The sums are computed from scratch: subtracting an agent would lose a weak prior to rounding.
    """
    L = 1 + max((int(i.max()) for i in z.values()), default=-1)
    S, P, m = np.tile(options.mu0 * options.p0, (L, 1)), np.full((L, v.shape[2]), options.p0), np.zeros(L, np.int64)
    for j, i in z.items():
        S[i], P[i], m[i] = S[i] + s[j] * v[j], P[i] + s[j], m[i] + 1
    used = m > 0
    number = np.cumsum(used) - 1
    return {j: number[i] for j, i in z.items()}, Atoms(S[used], P[used], m[used])


def gains(v: Floats, s: Floats, atoms: Atoms, J: int, options: MatchOptions) -> Floats:
    """Return the gain of assigning each neuron v [H, D] to each of the L atoms, or to a new one: [H, L + new].

    atom i      sum[(s v + S)^2 / (s + P) - S^2 / P] + log(m / (J - m)), m at most 10 in the log
    k-th new    sum[(s v + mu0 p0)^2 / (s + p0) - (mu0 p0)^2 / p0] - 2 log k + 2 log(gamma / J)
    """
    (S, P, m), H, L = atoms, len(v), len(atoms.m)
    a, Q, S0 = s * v, 1 / (s + P), options.mu0 * options.p0
    old = a**2 @ Q.T + 2 * a @ (S * Q).T + (S**2 * (Q - 1 / P)).sum(1)  # the square expanded: no [H, L, D]
    capped = np.minimum(m, 10)
    # H - L is for a single agent: the limit could leave some of its neurons without an atom.
    k = np.arange(1, 1 + min(H, max(options.limit - L, H - L, 1)))
    new = ((a + S0) ** 2 / (s + options.p0) - S0**2 / options.p0).sum(1)
    old = old + np.log(capped / (J - capped))
    return np.hstack([old, new[:, None] - 2 * np.log(k) + 2 * np.log(options.gamma / J)])


def assign_atoms(gain: Floats, L: int) -> Ints:
    """Return the atom of each neuron, [H], with the largest total gain; new atoms are numbered from L on."""
    from scipy.optimize import linear_sum_assignment  # takes half a second to import

    atom = np.asarray(linear_sum_assignment(gain, maximize=True)[1], np.int64)
    new = atom >= L
    atom[new] = L + np.arange(new.sum())
    return atom


def max_atoms(E: int, H: int, it: int, limit: int) -> int:
    """Return the largest number of atoms that `match` can end with.

    The second agent fills up to the limit, or adds one atom beyond it; each of the E - 2 + it E matches that follow
    can add one more. There are never more atoms than neurons.
    """
    return min(E * H, max(limit, H + 1) + E - 2 + it * E)


def class_shares(counts: Floats) -> Floats:
    """Return count_jc / sum_j count_jc, [J, C]; equal shares for a class that no agent has."""
    total = counts.sum(0)
    return np.where(total > 0, counts / np.maximum(total, 1), 1 / len(counts))


def require_options(method: str, options: dict[str, float]) -> None:
    """Raise an InputError if an option of PFNM or FedMA is out of range."""
    for k, value in options.items():
        least = {"it": 0, "limit": 1, "after": 1}.get(k)
        if least is None:
            require(f"{method}.{k}", value, lambda v: v > 0, "above 0")
        else:
            require_integer(f"{method}.{k}", value, least)
