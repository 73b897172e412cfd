"""What the study of FOCUS's starts runs: data whose true clusters are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, cast

from torch import nn

from focusfl.algorithms.focus.focus import Focus
from focusfl.data import rotated_cifar, rotated_digits, rotated_mnist, synthetic, yelp_imdb
from focusfl.data.federation import Federation
from focusfl.models import linear
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError

Start = Literal["split", "tied", "independent"]
STARTS = ("split", "tied", "independent")
WARMUPS = (1, 3, 10, 25, 50)  # rounds of the shared model: the start "split:10" and the like
MORE = (0, 1, 2, 4)  # clusters more than there are: the start "split+2" and the like
AUTO: Final = "auto"  # the start "split" that also says how many
NUMBERS = (1, 2, 3, 4, 6)  # true clusters
PAPER = (9, 16, 20, 29)  # rounds to 70, 80, 85 and 90 % of the paper's FOCUS on rotated MNIST


@dataclass(frozen=True)
class Case:
    """One federation; the seed draws its data and the first weights."""

    name: str
    data: Callable[..., Federation]
    options: dict[str, Any]
    clusters: int  # true ones
    rounds: int
    seconds: float  # of a run on one core, about; the bar goes by it
    starts: tuple[str, ...] = STARTS
    most: int | None = None  # seeds, where a run takes long
    reach: bool = False  # evaluate every round: when does it reach an accuracy?

    @property
    def settings(self) -> dict[str, Any]:
        """What decides a run's numbers. A row kept with other settings does not count."""
        return {"data": self.data.__name__, **self.options, "clusters": self.clusters, "rounds": self.rounds}

    def seeds(self, wanted: int) -> int:
        return wanted if self.most is None else min(wanted, self.most)

    def setup(self, start: str, seed: int) -> Setup:
        fed = self.data(seed=seed, **self.options)
        wide = partial(normal, fed.training.x.shape[1]) if self.data is synthetic else None
        return Setup.of(_focus(start, self.clusters), fed, self.rounds, model=wide, seed=seed)


def _focus(start: str, M: int) -> Focus:
    """The start, as its name says."""
    if start == AUTO:
        return Focus(M=AUTO, init="split")
    start, _, more = start.partition("+")
    init, _, warmup = start.partition(":")
    focus = Focus(M=M + int(more or 0), init=cast(Start, init))
    return replace(focus, warmup=int(warmup)) if warmup else focus


def normal(inputs: int) -> nn.Module:
    """The linear model with weights from N(0, 1): torch's own, small ones hide how much the start matters."""
    network = linear(inputs)
    for weight in network.parameters():
        nn.init.normal_(weight)
    return network


def mirrored_digits(seed: int = 0, kinds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)) -> Federation:
    """Rotated digits of an agent for each entry of `kinds`: 0 to 3 quarter turns; 4 to 7, the same in a mirror."""
    fed = rotated_digits(seed, [k % 4 for k in kinds])

    def seen(data: Any, kind: int) -> tuple[Any, Any]:
        return (data.x.flip(2) if kind >= 4 else data.x), data.y

    return Federation.from_agents(
        [seen(fed.train(e), k) for e, k in enumerate(kinds)],
        test=[seen(fed.test(e), k) for e, k in enumerate(kinds)],
        clusters=[sorted(set(kinds)).index(k) for k in kinds],
        classes=10,
        model=fed.recipe.model,
        train=fed.recipe.train,
        name="mirrored-digits",
    )


SYNTHETIC: dict[str, dict[str, Any]] = {  # R > 4r in all
    "paper": {},
    "near": {"R": 0.5},
    "far": {"R": 4.0},
    "spread": {"r": 0.1},
    "wide": {"r": 0.24},
    "half": {"outliers": 5},
    "three": {"outliers": 4, "outlier_clusters": 2},
    "four": {"outliers": 6, "outlier_clusters": 3, "r": 0.1},
    "long": {"d": 40},
    "few": {"n": 20, "R": 2.0, "r": 0.2},
}
DIGITS = {"paper": [0] * 7 + [1, 1, 2], "lone": [0] * 9 + [2], "four": [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]}
MNIST = {"raw": False, "normalised": True}
CIFAR = {"n": 200, "n_test": 100, "width": 8}


def cases() -> list[Case]:
    """The quick ones first."""
    return [*_starts(), *_numbers(), *_more(), *_warmups(), *_full()]


def chosen(only: list[str]) -> list[Case]:
    """All, or those with these names; synthetic stands for synthetic-paper and the like."""
    every = cases()
    for name in only:
        if not any(_is(case, name) for case in every):
            raise InputError(f"--only {name}: expected one or more of {', '.join(case.name for case in every)}")
    return [case for case in every if not only or any(_is(case, name) for name in only)]


def _starts() -> Iterator[Case]:
    for name, options in SYNTHETIC.items():
        clusters = 1 + options.get("outlier_clusters", 1)
        yield Case(f"synthetic-{name}", synthetic, options, clusters, 60, 1.2)
    for name, turns in DIGITS.items():
        yield Case(f"digits-{name}", rotated_digits, {"turns": turns}, len(set(turns)), 60, 6)
    for name, normalise in MNIST.items():
        options = {"n": 1000, "normalise": normalise}
        yield Case(f"mnist-{name}", rotated_mnist, options, 3, 40, 70)
    yield Case("text", yelp_imdb, {}, 2, 30, 20, most=3)
    yield Case("cifar", rotated_cifar, CIFAR, 2, 20, 200, most=2)


def _numbers() -> Iterator[Case]:
    """Twelve agents: in equal clusters, or each cluster but the first a single agent."""
    for K in NUMBERS:
        for shape, others in {"even": 12 - 12 // K, "lone": K - 1}.items() if K > 1 else [("even", 0)]:
            options = {"E": 12, "outliers": others, "outlier_clusters": max(1, K - 1), "r": 0.1}
            yield Case(f"auto-synthetic-{shape}-{K}", synthetic, options, K, 30, 0.6, (AUTO,))
    for K in NUMBERS:
        for shape, size in {"even": 12 // K, "lone": 1}.items() if K > 1 else [("even", 1)]:
            rest = [k for k in range(1, K) for _ in range(size)]
            kinds = [0] * (12 - len(rest)) + rest
            yield Case(f"auto-digits-{shape}-{K}", mirrored_digits, {"kinds": kinds}, K, 20, 2, (AUTO,))


def _more() -> Iterator[Case]:
    starts = tuple(f"split+{more}" for more in MORE)
    for name, turns in DIGITS.items():
        yield Case(f"more-digits-{name}", rotated_digits, {"turns": turns}, len(set(turns)), 60, 6, starts, 5)
    for name in ("paper", "three"):
        clusters = 1 + SYNTHETIC[name].get("outlier_clusters", 1)
        yield Case(f"more-synthetic-{name}", synthetic, SYNTHETIC[name], clusters, 60, 1.2, starts)


def _warmups() -> Iterator[Case]:
    """As many rounds in all, however many of them are shared."""
    starts = tuple(f"split:{t}" for t in WARMUPS)
    for name, turns in DIGITS.items():
        yield Case(f"warmup-digits-{name}", rotated_digits, {"turns": turns}, len(set(turns)), 80, 6, starts, 5)
    for name, normalise in MNIST.items():
        options = {"n": 1000, "normalise": normalise}
        yield Case(f"warmup-mnist-{name}", rotated_mnist, options, 3, 80, 100, starts, 2)


def _full() -> Iterator[Case]:
    yield Case("full-mnist-raw", rotated_mnist, {"normalise": False}, 3, 40, 600, ("split",), 2, True)


def _is(case: Case, name: str) -> bool:
    return case.name == name or case.name.startswith(f"{name}-")
