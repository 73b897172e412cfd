"""An agent whose losses and training are given, so that a method's rule can be followed with pen and paper."""

import torch


class Scripted:
    """`losses` [M], or `examples` [M, n]; training adds `move` to every weight. Keeps what it was asked."""

    def __init__(self, losses=(0.0,), examples=None, move=1.0, n=1.0, lr=0.1):
        self._losses = torch.tensor(losses)
        self._examples = None if examples is None else torch.tensor(examples)
        self.move, self.n, self.lr, self.learnt = move, torch.tensor(float(n)), lr, ("a",)
        self.asked = {}

    def losses(self, w, rough=None):
        return self._losses

    def example_losses(self, w):
        return self._examples

    def mean(self, values):
        return values.mean(-1)

    def sgd(self, w, pull=None, only=None, weights=None, freeze=()):
        self.asked = {"pull": pull, "only": only, "weights": weights}
        kept = torch.ones(len(w["a"])) if only is None else only.float()
        return {k: v + kept[:, None] * torch.as_tensor(self.move) for k, v in w.items()}


def models(*rows):
    """A stack of M models with one tensor."""
    return {"a": torch.tensor(rows)}


def one_round(method, server, agents, states=None):
    """`local` at each agent, then `aggregate`; the server's next state and the agents'."""
    states = states or [method.enroll(server) for _ in agents]
    pairs = [
        method.local(method.downlink(server, torch.tensor(e)), state, agent)
        for e, (state, agent) in enumerate(zip(states, agents, strict=True))
    ]
    adds, eachs = [up.add for _, up in pairs], [up.each for _, up in pairs]
    after = method.aggregate(server, _fold(sum, adds), _fold(torch.stack, eachs), torch.arange(len(agents)))
    return after, [state for state, _ in pairs]


def _fold(how, trees):
    first = trees[0]
    if not isinstance(first, dict):
        return how(trees)
    return {k: _fold(how, [tree[k] for tree in trees]) for k in first}
