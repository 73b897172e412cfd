"""focusfl: FedAvg in its own loop, with the engine it chooses itself.

Its engine may do without torch's modules, so its steps cannot be watched: the first round is replayed instead.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from peers.plain import one_round
from peers.work import Array, Work, network
from peers.work import weights as plain_weights
from peers.worker import FOREVER, Rows, Turn

import focusfl as ff
from focusfl.engines import plan
from focusfl.run.loop import run as rounds
from focusfl.run.setup import Setup

PACKAGE = "focusfl"


def run(work: Work, turn: Turn) -> None:
    agents = list(zip(work.x, work.y, strict=True))
    fed = ff.Federation.from_agents(agents, test=[(x[:1], y[:1]) for x, y in agents], classes=10)
    train = ff.Train(lr=work.lr, steps=work.steps, batch=None if work.full else work.batch)
    setup = Setup.of(ff.FedAvg(), fed, FOREVER, model=network(work), train=train)
    server = setup.start()[0]

    def weights() -> list[Array]:
        return [w[0].numpy() for w in server["w"].values()]

    def rows() -> Rows:
        if work.full:  # the others' weights bear it out
            return Counter({work.batch: fed.E * work.steps})
        planned = plan.batches(setup.seed, 0, np.arange(fed.E), fed.training.sizes.numpy(), train)
        gap = replayed(work, planned, weights())
        if not gap <= 1e-5:
            raise RuntimeError(f"the round's weights differ by {gap:.0e} from plain steps on the same rows")
        return Counter(planned.size.flatten().tolist())

    turn(weights, rows)
    for done in rounds(setup, eval_every=0):
        server = done.server
        if not turn(weights, rows):
            return


def replayed(work: Work, planned: plan.Plan, found: list[Array]) -> float:
    """The first round once more as a plain loop on the rows of the plan: the largest difference in the weights."""
    net = network(work)
    x, y = torch.from_numpy(work.x), torch.from_numpy(work.y)
    one_round(work, net, x, y, lambda e: [torch.from_numpy(planned.step(e, k)) for k in range(work.steps)])
    return max(float(abs(a - b).max()) for a, b in zip(found, plain_weights(net), strict=True))
