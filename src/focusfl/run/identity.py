"""The identity of a run: a digest of everything that determines its numbers."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from focusfl.run.setup import Setup

# A module from these packages is described by its class, plain attributes and weights, unless it holds a function.
# (Activations of transformers hold one; their class says which.)
DESCRIBED, ALWAYS_DESCRIBED = ("torch.nn.", "focusfl."), "transformers."


def digest(*parts: object) -> str:
    """Return the sha256 of these values, written as JSON, as hex digits."""
    return text_digest(json.dumps(list(parts)))


def text_digest(text: str) -> str:
    """Return the sha256 of a text, as hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint(setup: Setup) -> str:
    """Return the sha256 of all that determines a run's numbers, including the model's weights and attributes."""
    settings, network = setup.settings, setup.task.network
    parts: list[object] = [
        repr(setup.algorithm),
        setup.fed.fingerprint,
        repr(settings.local),
        settings.T,
        settings.seed,
    ]
    parts += [setup.engine.name, settings.fraction, repr(network), setup.task.attributes()]
    parts += behaviour(network, setup.fed.training.x)
    parts += ["bf16"] * setup.bf16
    if not setup.task.loss.default:
        parts += ["loss", *setup.task.loss.signature(setup.task.classes or 1)]
    parts += ["target", *setup.task.target] if setup.task.target is not None else []
    if settings.patience is not None:  # the examples it depends on are in the data's fingerprint
        parts += ["patience", settings.patience, settings.eval_every]
    parts += [repr(setup.presence)] * bool(setup.presence.joins or setup.presence.leaves)
    total = hashlib.sha256(json.dumps(parts).encode())
    for k, v in sorted({**dict(network.named_parameters()), **dict(network.named_buffers())}.items()):
        raw = v.detach().cpu().contiguous().reshape(-1).view(torch.uint8)  # numpy has no bfloat16
        total.update(k.encode() + raw.numpy().tobytes())
    return total.hexdigest()


def behaviour(network: nn.Module, x: Tensor) -> list[int | str]:
    """Return rounded outputs for the first rows of x if class names and attributes do not describe the network.

    They do not if a module is the user's own, whose `forward` may do anything, or if an attribute or hook is a
    function. The weights are perturbed first, because a last layer of zeros would make all networks equal. For
    other networks the list is empty.
    """
    if all(_described(m) for m in network.modules()):
        return []  # fingerprints of such networks never had outputs, and stay valid
    try:
        return _rounded(_outputs(network, x[:4], torch.double), 10**6)
    except RuntimeError:  # its `forward` requires float32, in which machines differ in the last digits
        pass
    try:
        return _rounded(_outputs(network, x[:4], torch.float), 10**3)
    except RuntimeError:  # it requires other types, such as bfloat16 for a frozen part
        return _rounded(_outputs(network, x[:4], None), 10)


def _described(m: nn.Module) -> bool:
    home = type(m).__module__
    parts = [*vars(m).values(), *m._forward_hooks.values(), *m._forward_pre_hooks.values()]
    return home.startswith(ALWAYS_DESCRIBED) or (home.startswith(DESCRIBED) and not any(callable(v) for v in parts))


@torch.no_grad()
def _outputs(network: nn.Module, x: Tensor, kind: torch.dtype | None) -> Tensor:
    """Return the outputs on the cpu, in one type (None: the network's own), with fixed random numbers."""
    network, x = copy.deepcopy(network).to("cpu", kind).eval(), x.cpu()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for p in network.parameters():
            if p.is_floating_point():
                p.add_(0.1 * torch.randn(p.shape, dtype=kind or p.dtype))
        out: Tensor = network(x.to(kind) if kind and x.is_floating_point() else x)
    return out.double()


def _rounded(out: Tensor, steps: int) -> list[int | str]:
    """Return the largest output to three digits, then all outputs relative to it, rounded to 1 / steps."""
    largest = out.abs().max().clamp_min(1e-30)
    return [f"{largest:.2e}", *(out / largest * steps).nan_to_num().round().long().flatten().tolist()]
