"""Adapted: after any method's last round, every agent adapts the shared model to its own data.

An agent may end with the shared prediction, with its own intercept, with all weights trained further on its own
data, or with a network that it trained alone; the latter two also held near the weights they started from, as by a
Gaussian prior. It tries each for several numbers of steps on its training examples, and weighs them by their losses
on its validation examples. That is an E step over candidates g instead of clusters:

    pi_eg  proportional to  prior_g exp(-TEMPERATURE n_e loss_eg)

In a regression the exponent is the likelihood of errors whose variance differs from agent to agent: see `weights`.
The prior is the mean of pi over all agents, found by a few rounds of EM, so an agent with few examples follows what
helps the others. Then it trains the candidates once more on all its examples, and predicts with their mixture.

server  {"adapt": {"phase": [], "prior": [G], "variance": [], "first": [1, ...]}}, beside the method's own
agent   {"adapt": {"own": [G - 1, ...], "losses": [G], "n": [], "pi": [G]}}, beside the method's own
upload  add {"least": [], "n": []}, then {"pi": [G], "agents": []} in each round of EM, then {"agents": []}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from focusfl.core import (
    Agent,
    Algorithm,
    Contribution,
    Models,
    Networks,
    Predictor,
    Pull,
    SgdOptions,
    State,
    Upload,
    Wrapper,
    broadcast,
    predicting_models,
    row,
)
from focusfl.util.errors import CannotRun, require_integer

Kind = Literal["shared", "intercept", "weights", "alone"]


class Path(NamedTuple):
    """A training of an agent's own, with a candidate after each of several numbers of steps.

    Attributes:
        kind: "intercept" and "weights" start from the shared model, "alone" from the network's first weights.
        steps: The numbers of steps.
        examples: How many examples the starting weights are worth: training minimises the mean loss plus
            examples / (2 n) times the squared distance from them.
    """

    kind: Kind
    steps: tuple[int, ...]
    examples: float = 0.0


PATHS: tuple[Path, ...] = (
    Path("intercept", (16, 256)),
    Path("weights", (16, 64, 1024)),
    Path("weights", (512,), examples=1),
    Path("weights", (256,), examples=10),
    Path("alone", (1024,)),
    Path("alone", (64, 512), examples=1),
    Path("alone", (256,), examples=10),
)
STEPS_AT_ONCE = 128  # in one call of the agent's training; batches are planned ahead
TEMPERATURE = 0.5  # the same few examples judge many candidates, so their losses count less than in eq. 8
VARIANCE_EXAMPLES = 4  # examples that the federation's variance of errors is worth beside an agent's own
EM_ROUNDS = 6
MOST_HELD_OUT = 100  # validation examples for one training example, beyond which an upload is refused
WORST = 1e9  # the loss of a candidate that diverged
TRY, WEIGH, REFIT, DONE = 1, 2, 2 + EM_ROUNDS, 3 + EM_ROUNDS  # the phases; 0 is the method's own training


@dataclass(frozen=True)
class Adapted(Wrapper):
    """A method whose agents adapt the shared model to their own data after its last round.

    Args:
        inner: The method.
        steps: The largest number of steps that an agent takes on its own.
    """

    steps: int = 1024

    def __post_init__(self) -> None:
        require_integer("adapt.steps", self.steps, min(path.steps[0] for path in PATHS if path.kind == "alone"))

    @property
    def personal(self) -> bool:  # type: ignore[override]
        return True

    def candidates(self, start: Models, first: Models, agent: Agent) -> Models:
        """Return the candidates [G - 1, ...] that the agent's examples make of the shared and the first model."""
        made = [w for path in PATHS for w in self._along(path, first if path.kind == "alone" else start, agent)]
        own = {k: torch.cat([w[k] for w in made]) for k in start}
        finite = torch.isfinite(agent.losses(own))
        return {k: torch.where(broadcast(finite, v), v, start[k]) for k, v in own.items()}

    def _along(self, path: Path, start: Models, agent: Agent) -> Iterator[Models]:
        """Yield the model after each number of steps of a path; in its second half the learning rate falls."""
        others = agent.trainable[:-1]  # the last one is the intercept
        options = SgdOptions(freeze=others if path.kind == "intercept" else ())
        if path.examples:
            options["pull"] = Pull(start, path.examples / agent.n)
        allowed = [steps for steps in path.steps if steps <= self.steps]
        w, done = start, 0
        for steps in allowed:
            while done < steps:
                options["steps"] = min(steps - done, STEPS_AT_ONCE)
                options["rate"] = min(1.0, 2 * (1 - done / allowed[-1]))
                w, done = agent.sgd(w, **options), done + options["steps"]
            yield w

    @property
    def kinds(self) -> list[Kind]:
        """The kind of each candidate, [G]; the first one is the shared prediction."""
        return ["shared", *(path.kind for path in PATHS for steps in path.steps if steps <= self.steps)]

    @property
    def G(self) -> int:
        """The number of candidates, with the shared prediction."""
        return len(self.kinds)

    def start(self, networks: Networks, E: int) -> State:
        prior = torch.full((self.G,), 1 / self.G)
        own = {"phase": torch.tensor(0), "prior": prior, "variance": torch.tensor(1.0), "first": networks.copies(1)}
        return {**self.inner.start(networks, E), "adapt": own}

    def enroll(self, server: State) -> State:
        first = server["adapt"]["first"]
        own = {k: v.repeat(self.G - 1, *[1] * (v.dim() - 1)) for k, v in first.items()}
        nothing = torch.zeros(self.G, device=server["adapt"]["prior"].device)
        pi = nothing.index_fill(0, torch.tensor(0, device=nothing.device), 1.0)  # the shared prediction
        return {**self.inner.enroll(server), "adapt": {"own": own, "losses": nothing, "n": pi[0] * 0, "pi": pi}}

    def downlink(self, server: State, e: Tensor) -> State:
        if WEIGH <= int(server["adapt"]["phase"]) < REFIT:  # no model is needed to weigh losses anew
            return {"adapt": {k: v for k, v in server["adapt"].items() if k != "first"}}
        return {**self.inner.downlink(server, e), "adapt": server["adapt"]}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        phase, mine = int(server["adapt"]["phase"]), state["adapt"]
        one = torch.ones_like(agent.n)
        if phase == TRY:
            mine = mine | self._tried(server, state, agent)
            least = mine["losses"].amin() if not agent.log_loss else one  # log losses need no unit
            return {**state, "adapt": mine}, Upload(add={"least": mine["n"] * least, "n": mine["n"]}, each={})
        if WEIGH <= phase < REFIT:
            pi = weights(server["adapt"], mine["losses"], mine["n"], agent.log_loss)
            return {**state, "adapt": mine | {"pi": pi}}, Upload(add={"pi": pi, "agents": one}, each={})
        if phase == REFIT:
            own = self.candidates(self._shared(server, state)[0], server["adapt"]["first"], agent.on("all"))
            return {**state, "adapt": mine | {"own": own}}, Upload(add={"agents": one}, each={})
        new, upload = self.inner.local(server, state, agent)
        return {**new, "adapt": mine}, upload

    def _tried(self, server: State, state: State, agent: Agent) -> State:
        """Return the loss of every candidate on the agent's validation examples, and their number."""
        held_out = agent.on("validation")
        start, members, shares = self._shared(server, state)
        own = self.candidates(start, server["adapt"]["first"], agent)
        shared = (shares * held_out.losses(members)).sum(-1, keepdim=True)
        losses = torch.cat([shared, held_out.losses(own)]).nan_to_num(WORST).clamp_max(WORST)
        return {"losses": torch.where(held_out.n > 0, losses, 0), "n": held_out.n}

    def _shared(self, server: State, state: State) -> tuple[Models, Models, Tensor]:
        """Return the model with the largest share in an agent's prediction, [1, ...], all of them, and shares."""
        stacks, shares = predicting_models(self.inner, server, state)
        members = {k: torch.cat([w[k] for w in stacks]) for k in stacks[0]}
        best = shares.argmax()
        return {k: row(v, best).unsqueeze(0) for k, v in members.items()}, members, shares

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        adapt, phase = server["adapt"], int(server["adapt"]["phase"])
        if phase == TRY:
            variance = torch.where(add["n"] > 0, add["least"] / add["n"].clamp_min(1), 1.0).clamp_min(1e-12)
            return {**server, "adapt": adapt | {"variance": variance}}
        if WEIGH <= phase < REFIT:
            prior = (add["pi"] + 1 / self.G) / (add["agents"] + 1)  # one more agent, for whom all are equal
            return {**server, "adapt": adapt | {"prior": prior}}
        if phase == REFIT:
            return server
        return {**self.inner.aggregate(server, add, each, cohort), "adapt": adapt}

    def finish(self, server: State) -> State | None:
        phase = int(server["adapt"]["phase"])
        if phase == 0 and (more := self.inner.finish(server)) is not None:
            return {**more, "adapt": server["adapt"]}
        later = {"adapt": server["adapt"] | {"phase": server["adapt"]["phase"] + 1}}
        return {**server, **later} if phase < REFIT else None

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        if int(server["adapt"]["phase"]) == 0:
            return self.inner.contribution(server, upload, n, agents)
        add = upload.add
        if "pi" in add:
            return Contribution({}, {}, weight=add["pi"], total=torch.tensor(float(agents)))
        if "least" not in add:
            return Contribution({}, {})
        shares = {"validation examples": agents * add["n"] / (MOST_HELD_OUT * n)}
        others = {"best validation loss": add["least"] / add["n"].clamp_min(1)} if agents == 1 else {}
        return Contribution({}, {}, shares=shares, others=others)

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        pi, shared = state["adapt"]["pi"], self.inner.predict(server, state, h)
        if int(server["adapt"]["phase"]) == 0:
            return shared
        own = h(state["adapt"]["own"], only=pi[1:] > 1e-4 / self.G)
        used = torch.where(pi > 1e-4 / self.G, pi, 0)
        used = used / used.sum()
        return used[0] * shared + torch.einsum("g,gnc->nc", used[1:], own)

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        """Return what a newcomer receives, and its state: it adapts the models with the prior of the federation."""
        everything = agent.on("all")
        view, inner = self.inner.assign(server, everything)
        view, state = {**view, "adapt": server["adapt"]}, {**inner, "adapt": self.enroll(server)["adapt"]}
        if not float(agent.on("validation").n):  # too few examples to judge by, or without labels
            return view, state
        tried = state["adapt"] | self._tried(view, state, agent)
        own = self.candidates(self._shared(view, state)[0], view["adapt"]["first"], everything)
        pi = weights(view["adapt"], tried["losses"], tried["n"], agent.log_loss)
        return view, {**inner, "adapt": tried | {"own": own, "pi": pi}}

    def released(self, server: State) -> State:
        return {**self.inner.released(server), "adapt": server["adapt"]}

    def check(self, w: Models, classes: int | None, E: int, h: Predictor) -> None:
        self.inner.check(w, classes, E, h)
        if self.inner.name in ("Local", "FedMA", "PFNM"):
            raise CannotRun(f"adapt: {self.inner.name} has no shared model that an agent could adapt")


def weights(adapt: State, losses: Tensor, n: Tensor, log_loss: bool = True) -> Tensor:
    """Return pi_eg, the shares of the candidates in an agent's prediction, [G].

    In a regression the variance of an agent's errors is not known. With the conjugate prior, which is worth nu
    examples with the variance s^2 of the federation, the likelihood of n errors with a mean square L is
    proportional to (1 + n L / (nu s^2))^(-(n + nu) / 2). An agent with small errors so distinguishes small ones.

    Args:
        adapt: The server's `prior`, and `variance`, which is s^2.
        losses: The agent's validation loss of each candidate, [G].
        n: The number of its validation examples.
        log_loss: Whether losses are -log of a probability.

    Example:
        >>> equal = {"prior": torch.tensor([0.5, 0.5]), "variance": torch.tensor(1.0)}
        >>> weights(equal, torch.tensor([1.0, 2.0]), torch.tensor(0.0))
        tensor([0.5000, 0.5000])
    """
    misfit = n * losses
    if not log_loss:
        nu = VARIANCE_EXAMPLES
        misfit = (n + nu) / 2 * torch.log1p(misfit / (nu * adapt["variance"]))
    return torch.softmax(adapt["prior"].log() - TEMPERATURE * misfit, dim=-1)


def adapted(algorithm: Algorithm, by_default: bool) -> Algorithm:
    """Return the method with adaptation, if its option `adapt` says so.

    Args:
        algorithm: The method. One without that option stays as it is: write Adapted(FedAvg()).
        by_default: Whether adapt=None means yes.
    """
    wanted = getattr(algorithm, "adapt", False)
    return Adapted(algorithm) if (by_default if wanted is None else wanted) else algorithm
