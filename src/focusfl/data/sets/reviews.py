"""Yelp and IMDb: positive or negative? Seven agents hold reviews of businesses, three reviews of films."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from focusfl.core import Data
from focusfl.core.train import Train
from focusfl.data import store
from focusfl.data.federation import Federation, Recipe, Rows
from focusfl.models.mlp import mlp
from focusfl.models.text import embed, text_classifier, tokenise
from focusfl.util.errors import InputError, require

Ints = NDArray[np.int64]
Encode = Callable[[Sequence[str]], Tensor]  # texts -> x


def yelp_imdb(
    seed: int = 0,
    yelp_agents: int = 7,
    imdb_agents: int = 3,
    n: int | None = None,
    n_test: int | None = None,
    mode: Literal["frozen", "tuned"] = "frozen",
    encoder: str | None = None,
    length: int = 128,
) -> Federation:
    """Reviews from Yelp (seven agents) and IMDb (three agents), positive or negative: the paper's text data.

    There are two true clusters. Labels, and the sources that the Yelp reviews were collected from, are spread
    evenly over the agents.

    Args:
        seed: Decides who gets which review.
        yelp_agents: The number of agents with Yelp reviews.
        imdb_agents: The number of agents with IMDb reviews.
        n: Training reviews per agent; by default all, in equal parts.
        n_test: Test reviews per agent; by default all, in equal parts.
        mode: "frozen": x is a sentence embedding, computed once and cached, and the model a small head.
            "tuned": x is token ids, and the whole encoder is trained, as in the paper.
        encoder: A folder, or a name on the Hugging Face hub; by default the packaged MiniLM.
        length: How many tokens of a review are read.

    Returns:
        A federation with 2 classes.

    Raises:
        InputError: An option is out of range, or the reviews or the encoder could not be downloaded.

    Example:
        ``fed = yelp_imdb(n=200, n_test=100)``
    """
    require("data.seed", seed, lambda v: v >= 0, "0 or more")
    require("data.yelp_agents", yelp_agents, lambda v: 1 <= v <= 1000, "from 1 to 1000")
    require("data.imdb_agents", imdb_agents, lambda v: 1 <= v <= 1000, "from 1 to 1000")
    require("data.mode", mode, mode in ("frozen", "tuned"), "frozen or tuned")
    kinds = (("yelp", yelp_agents), ("imdb", imdb_agents))
    train = [_share_out(name, "train", E, n, seed) for name, E in kinds]
    test = [_share_out(name, "test", E, n_test, seed) for name, E in kinds]
    # All options are checked by now; the slow part follows.
    encode: Encode = partial(embed if mode == "frozen" else tokenise, encoder=encoder, length=length)
    training, testing = (Rows.join([d for part in parts for d in part.examples(encode)]) for parts in (train, test))
    return Federation(
        name="yelp-imdb",
        training=training,
        testing=testing,
        classes=2,
        clusters=torch.tensor([0] * yelp_agents + [1] * imdb_agents),
        recipe=_recipe(mode, encoder, training.x.shape[1]),
    )


def deal(strata: Ints, E: int, size: int | None, rng: np.random.Generator) -> list[Ints]:
    """Deal rows to E agents at random, each row at most once, every stratum spread evenly over the agents.

    Args:
        strata: The stratum of each row, [N].
        E: The number of agents.
        size: Rows per agent; None deals all of them.
        rng: Decides who gets which row.

    Returns:
        The rows of each agent.
    """
    N = len(strata)
    order = rng.permutation(N)
    order = order[np.argsort(strata[order], kind="stable")]  # one stratum after the other, each in random order
    if size is not None:
        order = order[np.arange(size * E) * N // (size * E)]  # evenly spaced: strata keep their shares
    return [rng.permutation(order[e::E]) for e in range(E)]


class Shares(NamedTuple):
    """Which reviews of a data set its agents hold."""

    texts: Sequence[str]
    y: Ints
    rows: list[Ints]  # of each agent

    def examples(self, encode: Encode) -> list[Data]:
        """Encode the texts and return each agent's examples."""
        used = np.sort(np.concatenate(self.rows))  # in the data set's order: cached embeddings serve every seed
        x = encode([self.texts[int(i)] for i in used])
        return [Data(x[np.searchsorted(used, rows)], torch.from_numpy(self.y[rows])) for rows in self.rows]


def _share_out(name: str, part: str, E: int, size: int | None, seed: int) -> Shares:
    data = store.load(name)
    y = np.asarray(data[f"{part}_y"], np.int64)
    limit = len(y) // E
    if size is not None and not 1 <= size <= limit:
        option = "data.n" if part == "train" else "data.n_test"
        raise InputError(
            f"{option} = {size}: expected from 1 to {limit}, since {E} agents share {len(y)} {name} reviews"
        )
    source = np.asarray(data.get(f"{part}_source", np.zeros(1)), np.int64)
    rng = np.random.default_rng([seed, 3, *f"{name} {part}".encode()])
    return Shares(data[f"{part}_text"], y, deal(2 * source + y, E, size, rng))


def _recipe(mode: str, encoder: str | None, width: int) -> Recipe:
    """Return the paper's settings for "tuned", and measured ones for "frozen" (docs/text.md)."""
    if mode == "tuned":
        train = Train(optimiser="adamw", lr=5e-5, epochs=2, batch=512)
        return Recipe(model=partial(text_classifier, encoder, 2), train=train, rounds=3)
    return Recipe(model=partial(mlp, width, 64, 2), train=Train(lr=0.1, epochs=1, batch=32), rounds=30)
