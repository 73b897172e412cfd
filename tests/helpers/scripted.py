"""An agent with fixed losses and training, so that the rule of a method can be computed by hand."""

import torch


class Scripted:
    """An agent with these losses [M], or losses of examples [M, n], whose training adds `move` to every weight.

    The attribute `asked` holds the options of the last training.
    """

    def __init__(self, losses=(0.0,), examples=None, move=1.0, n=1.0, lr=0.1):
        self._losses = torch.tensor(losses)
        self._examples = None if examples is None else torch.tensor(examples)
        self.move, self.n, self.lr, self.trainable = move, torch.tensor(float(n)), lr, ("a",)
        self.asked = {}

    def losses(self, w, estimate=None):
        return self._losses

    def example_losses(self, w):
        return self._examples

    def mean(self, values):
        return values.mean(-1)

    def sgd(self, w, pull=None, only=None, weights=None, freeze=()):
        self.asked = {"pull": pull, "only": only, "weights": weights}
        trained = torch.ones(len(w["a"])) if only is None else only.float()
        return {k: v + trained[:, None] * torch.as_tensor(self.move) for k, v in w.items()}


def models(*rows):
    """A stack of M models with one tensor."""
    return {"a": torch.tensor(rows)}


def one_round(method, server, agents, states=None):
    """Run `local` at each agent, then `aggregate`; return the next states of the server and of the agents."""
    states = states or [method.enroll(server) for _ in agents]
    pairs = [
        method.local(method.downlink(server, torch.tensor(e)), state, agent)
        for e, (state, agent) in enumerate(zip(states, agents, strict=True))
    ]
    adds, eachs = [up.add for _, up in pairs], [up.each for _, up in pairs]
    after = method.aggregate(server, _combine(sum, adds), _combine(torch.stack, eachs), torch.arange(len(agents)))
    return after, [state for state, _ in pairs]


def _combine(f, trees):
    first = trees[0]
    if not isinstance(first, dict):
        return f(trees)
    return {k: _combine(f, [tree[k] for tree in trees]) for k in first}
