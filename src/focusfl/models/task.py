"""Task: a network and its loss as pure functions of the weights. InitialWeights: the weights of round 0."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from focusfl.core import Models, one_hot
from focusfl.models import losses
from focusfl.models.losses import Loss
from focusfl.models.mlp import SkipMlp
from focusfl.util.errors import InputError, refuse_errors

Weights = dict[str, Tensor]  # ONE model: the M axis taken off

# Layers whose output depends on weights and input alone, is the same in train and eval mode, and can be vmapped.
STATELESS_LAYERS = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Flatten, nn.Unflatten, nn.Identity, nn.LayerNorm),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.GroupNorm),
)
# Layers that keep batch statistics or draw random numbers: they can only run one agent at a time.
STATEFUL_LAYERS = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RNNBase)
# The modules of torch whose layers update their batch statistics in place.
NORM_LAYER_MODULES = ("torch.nn.modules.batchnorm", "torch.nn.modules.instancenorm")
# Attributes of one module object, besides its class, that change its output and its gradient.
FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "forward")
BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")


class Score(NamedTuple):
    """How good predictions are, for each example."""

    loss: Tensor  # [n]
    correct: Tensor  # [n], 1 where the predicted class is correct, or the share of labels; zeros in regression


class TargetScale(NamedTuple):
    """A regression is trained on (y - mean) / deviation."""

    mean: float
    deviation: float


class Task:
    """A network with its loss, as functions of the weights.

    Args:
        network: The network; it is copied.
        classes: The number of classes, or of labels per example; None means regression.
        loss: How outputs are compared with labels. By default cross-entropy, or in regression the squared error.
        target: In regression with the squared error: the network learns scaled targets. Losses of training are
            those of the scaled targets; predictions and their scores are in the target's own units.

    Attributes:
        bf16: Whether training multiplies in bfloat16; weights and sums stay float32. Set by the run.
        parameters: Names of the trained parameters.
        custom_statistics: Names of the persistent float buffers that are not torch's batch statistics.
        local_buffers: Names of the buffers that are not shared: counters, and buffers that are not persistent.
        stateful_layers: Kinds of layers with state or randomness, which need the serial engine.
        has_forward_hooks: Whether a module has forward hooks or a replaced `forward`.
        prefers_channels_last: Whether convolutions run faster, and safely, with channels innermost.
        stateless: Whether the output depends on weights and input alone.

    Example:
        >>> task = Task(nn.Linear(3, 2), classes=2)
        >>> task.outputs(task.weights(), torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        network: nn.Module,
        classes: int | None,
        loss: Loss | None = None,
        target: TargetScale | None = None,
    ) -> None:
        self.network = copy.deepcopy(network)
        self.classes = classes
        self.loss = losses.resolve(None, classes) if loss is None else loss
        self.target = target
        self.bf16 = False
        self.parameters = [k for k, p in network.named_parameters() if p.requires_grad]
        shared, buffers = shared_weights(network), [k for k, _ in network.named_buffers()]
        norms = {name for name, m in network.named_modules() if type(m).__module__ in NORM_LAYER_MODULES}
        self.custom_statistics = [k for k in buffers if k in shared and k.rpartition(".")[0] not in norms]
        self.local_buffers = [k for k in buffers if k not in shared]
        layers = [m for m in network.modules() if type(m) not in (nn.Sequential, SkipMlp)]
        convolutions = [m for m in layers if isinstance(m, nn.Conv2d)]
        wide = all(m.out_channels >= 8 and m.groups == 1 for m in convolutions)
        self.prefers_channels_last = bool(convolutions) and wide
        self.has_forward_hooks = any(vars(m).get(k) for m in network.modules() for k in FORWARD_HOOKS)
        self.stateful_layers = [type(m).__name__ for m in layers if isinstance(m, STATEFUL_LAYERS)]
        if any(vars(m).get(k) for m in network.modules() for k in BACKWARD_HOOKS):
            self.stateful_layers.append("backward hooks")
        has_state = self.stateful_layers or any(b.is_floating_point() for b in network.buffers())
        known_layers = all(type(m) in STATELESS_LAYERS for m in layers)
        self.stateless = known_layers and not has_state and not self.has_forward_hooks

    @property
    def log_loss(self) -> bool:
        """Whether the loss is -log of the probability of the label."""
        return self.classes is not None and self.loss.default

    def attributes(self) -> list[tuple[str, str, object]]:
        """Return (module, attribute, value) of the simple values in modules, such as a slope: they matter too."""
        kinds = (bool, int, float, str, type(None))
        named = [(name, k, v) for name, m in self.network.named_modules() for k, v in vars(m).items()]
        return [(name, k, v) for name, k, v in named if isinstance(v, kinds) and k != "training"]

    def weights(self) -> Weights:
        """Return what agents and server exchange: trained parameters and persistent float statistics."""
        return shared_weights(self.network)

    def outputs(self, w: Weights, x: Tensor, train: bool = False) -> Tensor:
        """Return the network's outputs [n, C] for x with weights w. In train mode, w's statistics are updated."""
        if self.network.training != train:
            self.network.train(train)
        local = {k: self.network.get_buffer(k).clone() for k in self.local_buffers}
        used = {**local, **w, **{k: w[k].clone() for k in self.custom_statistics}}  # `forward` may write or assign
        if self.bf16 and train:
            with torch.autocast(x.device.type, torch.bfloat16):
                out: Tensor = functional_call(self.network, used, (x,)).float()
        else:
            out = functional_call(self.network, used, (x,))
        if train and self.custom_statistics:
            self._store_statistics(w, used)
        return out

    @torch.no_grad()
    def _store_statistics(self, w: Weights, used: Weights) -> None:
        """Copy the custom statistics, as `forward` left them, into w."""
        for k in self.custom_statistics:
            if not isinstance(used[k], Tensor) or used[k].shape != w[k].shape:
                raise InputError(
                    f"the model's forward changes the shape {list(w[k].shape)} of its buffer {k}: register it in "
                    "its final shape, or with persistent=False if it need not be saved"
                )
            w[k].copy_(used[k])

    def to(self, device: torch.device) -> None:
        """Move the network and the loss to `device`."""
        self.network.to(device)
        self.loss = self.loss.to(device)

    def example_losses(self, out: Tensor, y: Tensor) -> Tensor:
        """Return the loss l(h(x), y) of each example: out [..., n, C], y [..., n] or [..., n, C] -> [..., n]."""
        out = out.squeeze(-1) if self.classes is None else out
        if self.loss.default:
            return self.loss.each(out, self.scaled(y))
        leading = out.shape if self.classes is None else out.shape[:-1]  # [..., n]
        flat = len(leading) - 1
        values = self.loss.each(out.flatten(0, flat), y.flatten(0, flat))
        return torch.unflatten(values, 0, leading)

    @property
    def loss_unit(self) -> float:
        """What a loss of scaled targets is multiplied by to be one of the targets themselves: deviation^2."""
        return 1.0 if self.target is None else self.target.deviation**2

    def scaled(self, y: Tensor) -> Tensor:
        """Return targets as the network learns them."""
        return y if self.target is None else (y - self.target.mean) / self.target.deviation

    def predictions(self, out: Tensor) -> Tensor:
        """Return probabilities of the classes or of each label, or in regression values in the target's units."""
        if self.classes is None:
            return out if self.target is None else out * self.target.deviation + self.target.mean
        return torch.sigmoid(out) if self.loss.labels == "multi-label" else torch.softmax(out, -1)

    def score(self, p: Tensor, y: Tensor) -> Score:
        """Score predictions p [..., n, C]. Eq. 7: the loss of a mixture is the loss of the mixed probabilities.

        A loss other than the default gets the outputs that have these probabilities: their logarithms.
        """
        if self.classes is None:
            loss = self.loss.each(p.squeeze(-1), y) if self.loss.default else self.example_losses(p, y)
            return Score(loss, torch.zeros_like(y))
        if self.loss.labels == "multi-label":
            logits = torch.logit(p, eps=1e-7)  # about the least 1 - p of float32
            return Score(self.example_losses(logits, y), ((p > 0.5) == (y > 0.5)).to(p.dtype).mean(-1))
        if self.loss.default:
            loss = -p.gather(-1, y.unsqueeze(-1)).squeeze(-1).clamp_min(1e-12).log()
        else:
            loss = self.example_losses(p.clamp_min(1e-12).log(), y)
        return Score(loss, (p.argmax(-1) == y).to(p.dtype))

    def class_indicators(self, y: Tensor) -> Tensor:
        """Return 1.0 for the class of each example, or for each of its labels: [..., n, C]."""
        assert self.classes is not None
        return y if self.loss.labels == "multi-label" else one_hot(y, self.classes)

    def accepts_one_example(self, x: Tensor) -> bool:
        """Return whether it can train on one example, x [1, ...]; batch norm of vectors needs two."""
        if not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.network.modules()):
            return True
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                self.outputs({k: v.clone() for k, v in self.weights().items()}, x, train=True)
        except ValueError:
            return False
        return True

    def check(self, x: Tensor) -> None:
        """Check that the network accepts inputs like x [n, ...] and gives one output per class.

        Raises:
            InputError: It does not; the message says what to change.
        """
        if not self.parameters:
            raise InputError("the model has no parameters to train")
        if any("/" in k for k in self.network.state_dict()):
            raise InputError("a module of the model has '/' in its name: rename it")
        for k, v in self.weights().items():
            if v.dtype != torch.float32:
                kind = str(v.dtype).removeprefix("torch.")
                raise InputError(
                    f"the model's {k} is {kind}: trained weights and statistics must be float32. Call "
                    "model.float(); for faster training use precision = bf16"
                )
        for name, m in self.network.named_modules():
            if isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats and m.momentum is None:
                raise InputError(f"the model's {name or type(m).__name__} has momentum = None: set it to a number")
        two = x[[0, 0]].to(next(self.network.parameters()).device)
        try:
            with torch.no_grad():
                out = self.network.eval()(two)
        except Exception as error:
            raise InputError(f"the model cannot take inputs of shape {list(x.shape[1:])}: {error}") from error
        want = 1 if self.classes is None else self.classes
        if not isinstance(out, Tensor) or tuple(out.shape) != (2, want):
            what = "regression needs 1 output" if self.classes is None else f"the labels need {want} outputs"
            found = f"shape {list(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise InputError(f"the model returns {found} for two examples: {what} each")


class InitialWeights:
    """The weights of round 0 (implements core.Networks).

    Args:
        model: A function that makes a network, or a network to start from as it is.
        seed: The seed that a new network's weights are drawn with.
    """

    def __init__(self, model: nn.Module | Callable[[], nn.Module], seed: int) -> None:
        self.model, self.seed = model, seed

    def network(self, m: int = 0) -> nn.Module:
        """Return the m-th network under this seed; the global random state does not change."""
        if isinstance(self.model, nn.Module):
            return self.model
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_network_seed(self.seed, m))
            with refuse_errors("model: the function that makes it failed"):
                return self.model()

    def copies(self, M: int, noise: float = 0.0) -> Models:
        """Return M copies of one network; all but the first with noise, relative to each tensor's spread."""
        network = self.network()
        trained = {k for k, p in network.named_parameters() if p.requires_grad}
        rng = torch.Generator().manual_seed(_network_seed(self.seed, -1))
        weights = shared_weights(network)
        spread = {k: v.std(correction=0) for k, v in weights.items() if k in trained}
        if not any(spread.values()):  # all tensors are constant: use their size, or that of a usual initialisation
            spread = {k: weights[k].abs().max() or weights[k].shape[-1:].numel() ** -0.5 for k in spread}
        stack = {}
        for k, v in weights.items():
            stack[k] = v.unsqueeze(0).repeat(M, *[1] * v.dim())
            if noise and k in trained:
                draws = torch.randn(stack[k][1:].shape, generator=rng, dtype=v.dtype)
                stack[k][1:] += noise * spread[k] * draws
        return stack

    def independent(self, M: int) -> Models:
        """Return M networks, each with weights of its own.

        Raises:
            InputError: `model` is one network, not a function that makes networks.
        """
        if M > 1 and isinstance(self.model, nn.Module):
            raise InputError(
                "independent networks need a function that makes one, not a network: model=lambda: ..."
            )
        each = [shared_weights(self.network(m)) for m in range(M)]
        return {k: torch.stack([w[k] for w in each]) for k in each[0]}


def shared_weights(network: nn.Module) -> Weights:
    """Return what agents and server exchange: trained parameters and persistent float statistics."""
    persistent = network.state_dict().keys()
    trained = {k: p for k, p in network.named_parameters() if p.requires_grad}
    statistics = {k: b for k, b in network.named_buffers() if b.is_floating_point() and k in persistent}
    return {k: v.detach() for k, v in {**trained, **statistics}.items()}


def _network_seed(seed: int, m: int) -> int:
    return (seed * 1_000_003 + m + 1) % (1 << 62)
