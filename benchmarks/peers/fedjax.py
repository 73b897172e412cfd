"""fedjax: its federated averaging, every client by the jit backend, its default."""

from __future__ import annotations

from collections import Counter

import fedjax
import jax
import numpy as np
from fedjax.algorithms.fed_avg import federated_averaging
from peers.work import Array, Work
from peers.worker import Rows, Turn

PACKAGE = "fedjax"
Params = dict[str, jax.Array]


def loss(params: Params, batch: dict[str, jax.Array]) -> jax.Array:
    hidden = jax.nn.relu(batch["x"] @ params["w0"] + params["w1"])
    likely = jax.nn.log_softmax(hidden @ params["w2"] + params["w3"])
    return -jax.numpy.take_along_axis(likely, batch["y"][:, None], axis=1).mean()


def run(work: Work, turn: Turn) -> None:
    how = fedjax.ShuffleRepeatBatchHParams(
        batch_size=work.batch, num_epochs=None, num_steps=work.steps, skip_shuffle=work.full
    )
    data = [fedjax.ClientDataset({"x": x, "y": y}) for x, y in zip(work.x, work.y, strict=True)]
    algorithm = federated_averaging(
        grad_fn=lambda params, batch, rng: jax.grad(loss)(params, batch),
        client_optimizer=fedjax.optimizers.sgd(learning_rate=work.lr),
        server_optimizer=fedjax.optimizers.sgd(learning_rate=1.0),
        client_batch_hparams=how,
    )
    state = algorithm.init({f"w{i}": jax.numpy.asarray(w.T) for i, w in enumerate(work.start)})

    def weights() -> list[Array]:
        return [np.asarray(state.params[f"w{i}"]).T for i in range(4)]

    def rows() -> Rows:
        return Counter(len(batch["y"]) for d in data for batch in d.shuffle_repeat_batch(how))

    key = jax.random.PRNGKey(0)
    while turn(weights, rows):
        key, *keys = jax.random.split(key, len(data) + 1)
        clients = [(str(e).encode(), d, k) for e, (d, k) in enumerate(zip(data, keys, strict=True))]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
