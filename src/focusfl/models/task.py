"""Task: a network and its loss as pure functions of the weights; and where first weights come from."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from focusfl.core import Models
from focusfl.util.errors import InputError

Weights = dict[str, Tensor]  # ONE model: the M axis taken off

# Layers whose output depends on weights and input alone, the same in train and eval mode, and that vmap.
PLAIN = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Flatten, nn.Unflatten, nn.Identity, nn.LayerNorm),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.GroupNorm),
)
# Layers that keep statistics of the batch or draw random numbers: one agent at a time only.
MOODY = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RNNBase)
# Where torch's layers with batch statistics live: they write into what they are given.
NORMS = ("torch.nn.modules.batchnorm", "torch.nn.modules.instancenorm")
# What one module may hold, besides its class, that changes its answer, and its gradient.
HOOKS, BACKWARD = ("_forward_hooks", "_forward_pre_hooks", "forward"), ("_backward_hooks", "_backward_pre_hooks")


class Score(NamedTuple):
    """Per example."""

    loss: Tensor  # [n]
    right: Tensor  # [n], 1 where the class is right; zeros in regression


class Task:
    """`classes` None: regression with squared error. Else classification with cross-entropy."""

    def __init__(self, network: nn.Module, classes: int | None) -> None:
        self.network = copy.deepcopy(network)
        self.classes = classes
        self.bf16 = False  # training multiplies in bfloat16; weights and sums stay float32
        self.parameters = [k for k, p in network.named_parameters() if p.requires_grad]
        travels = travelling(network)
        norms = {name for name, m in network.named_modules() if type(m).__module__ in NORMS}
        self.own = [k for k, _ in network.named_buffers() if k in travels and k.rpartition(".")[0] not in norms]
        self.local = [k for k, _ in network.named_buffers() if k not in travels]  # counters, and not persistent
        layers = [m for m in network.modules() if type(m) is not nn.Sequential]
        self.hooked = any(vars(m).get(k) for m in network.modules() for k in HOOKS)
        convolutions = [m for m in layers if isinstance(m, nn.Conv2d)]
        self.wide = bool(convolutions) and all(m.out_channels >= 8 and m.groups == 1 for m in convolutions)
        self.moody = [type(m).__name__ for m in layers if isinstance(m, MOODY)]
        self.moody += ["backward hooks"] * any(vars(m).get(k) for m in network.modules() for k in BACKWARD)
        restless = self.hooked or self.moody or any(b.is_floating_point() for b in network.buffers())
        self.plain = not restless and all(type(m) in PLAIN for m in layers)

    def attributes(self) -> list[tuple[str, str, object]]:
        """Plain values that modules hold, such as a slope or a scale: they too decide what the network says."""
        kinds = (bool, int, float, str, type(None))
        named = [(name, k, v) for name, m in self.network.named_modules() for k, v in vars(m).items()]
        return [(name, k, v) for name, k, v in named if isinstance(v, kinds) and k != "training"]

    def weights(self) -> Weights:
        """What travels: trained parameters and persistent float statistics. All else stays put, as it was."""
        return travelling(self.network)

    def outputs(self, w: Weights, x: Tensor, train: bool = False) -> Tensor:
        """What the network with weights w says to x, [n, C]. In train mode batch statistics in w are updated."""
        if self.network.training != train:
            self.network.train(train)
        local = {k: self.network.get_buffer(k).clone() for k in self.local}
        given = {**local, **w, **{k: w[k].clone() for k in self.own}}  # `forward` may write or assign
        if self.bf16 and train:
            with torch.autocast(x.device.type, torch.bfloat16):
                out: Tensor = functional_call(self.network, given, (x,)).float()
        else:
            out = functional_call(self.network, given, (x,))
        if train and self.own:
            self._keep(w, given)
        return out

    @torch.no_grad()
    def _keep(self, w: Weights, given: Weights) -> None:
        """Statistics of the user's own modules, as `forward` left them, into w."""
        for k in self.own:
            if not isinstance(given[k], Tensor) or given[k].shape != w[k].shape:
                raise InputError(
                    f"the model's {k} has shape {list(w[k].shape)} and its forward makes it another: register it "
                    "in its last shape, or with persistent=False if it need not be kept"
                )
            w[k].copy_(given[k])

    def example_losses(self, out: Tensor, y: Tensor) -> Tensor:
        """l(h(x), y) of each example: out [..., n, C], y [..., n] -> [..., n]."""
        if self.classes is None:
            return (out.squeeze(-1) - y).square()
        return -torch.log_softmax(out, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def predictions(self, out: Tensor) -> Tensor:
        """Probabilities when classifying; the outputs themselves in regression."""
        return out if self.classes is None else torch.softmax(out, -1)

    def score(self, p: Tensor, y: Tensor) -> Score:
        """Judge predictions p [n, C]; eq. 7: the loss of a mixture is the loss of the mixed probabilities."""
        if self.classes is None:
            return Score((p.squeeze(-1) - y).square(), torch.zeros_like(y))
        loss = -p.gather(-1, y.unsqueeze(-1)).squeeze(-1).clamp_min(1e-12).log()
        return Score(loss, (p.argmax(-1) == y).to(p.dtype))

    def takes_one(self, x: Tensor) -> bool:
        """Can it train on a batch of one example, x [1, ...]? Batch norm of plain vectors needs two."""
        if not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.network.modules()):
            return True
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                self.outputs({k: v.clone() for k, v in self.weights().items()}, x, train=True)
        except ValueError:
            return False
        return True

    def check(self, x: Tensor) -> None:
        """Does the network take such inputs and answer with one output per class?"""
        if not self.parameters:
            raise InputError("the model has no parameters to train")
        if any("/" in k for k in self.network.state_dict()):
            raise InputError("the model has a module with '/' in its name: rename it")
        for k, v in self.weights().items():
            if v.dtype != torch.float32:
                kind = str(v.dtype).removeprefix("torch.")
                raise InputError(
                    f"the model's {k} is {kind}: trained weights and statistics must be float32. Call "
                    "model.float(); for speed there is precision = bf16"
                )
        for name, m in self.network.named_modules():
            if isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats and m.momentum is None:
                raise InputError(f"the model's {name or type(m).__name__} has momentum = None: give it a number")
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
            raise InputError(f"the model answers two examples with {found}: {what} each")


class Fresh:
    """First weights (core.Networks). `model` is a function that makes a network, or a network as it is."""

    def __init__(self, model: nn.Module | Callable[[], nn.Module], seed: int) -> None:
        self.model, self.seed = model, seed

    def network(self, m: int = 0) -> nn.Module:
        """The m-th network drawn under this seed; the global random state is left alone."""
        if isinstance(self.model, nn.Module):
            return self.model
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_mix(self.seed, m))
            return self.model()

    def copies(self, M: int, noise: float = 0.0) -> Models:
        network = self.network()
        learnt = {k for k, p in network.named_parameters() if p.requires_grad}
        rng = torch.Generator().manual_seed(_mix(self.seed, -1))
        weights = travelling(network)
        spread = {k: v.std(correction=0) for k, v in weights.items() if k in learnt}
        if not any(spread.values()):  # constant tensors, all of them: take their size, or that of a usual start
            spread = {k: weights[k].abs().max() or weights[k].shape[-1:].numel() ** -0.5 for k in spread}
        stack = {}
        for k, v in weights.items():
            stack[k] = v.unsqueeze(0).repeat(M, *[1] * v.dim())
            if noise and k in learnt:
                draws = torch.randn(stack[k][1:].shape, generator=rng, dtype=v.dtype)
                stack[k][1:] += noise * spread[k] * draws
        return stack

    def independent(self, M: int) -> Models:
        if M > 1 and isinstance(self.model, nn.Module):
            raise InputError(
                "independent networks need a function that makes one, not a network: model=lambda: ..."
            )
        each = [travelling(self.network(m)) for m in range(M)]
        return {k: torch.stack([w[k] for w in each]) for k in each[0]}


def travelling(network: nn.Module) -> Weights:
    """Trained parameters and float statistics."""
    kept = network.state_dict().keys()
    learnt = {k: p for k, p in network.named_parameters() if p.requires_grad}
    statistics = {k: b for k, b in network.named_buffers() if b.is_floating_point() and k in kept}
    return {k: v.detach() for k, v in {**learnt, **statistics}.items()}


def _mix(seed: int, m: int) -> int:
    return (seed * 1_000_003 + m + 1) % (1 << 62)
