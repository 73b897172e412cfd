"""What tells one run from another: a digest of everything that decides its numbers."""

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
    """sha256 of these values, written as JSON; hex digits."""
    return text_digest(json.dumps(list(parts)))


def text_digest(text: str) -> str:
    """sha256 of a text; hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint(setup: Setup) -> str:
    """sha256 of all that decides a run's numbers; the model counts with its weights and attributes."""
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
    parts += [repr(setup.presence)] * bool(setup.presence.joins or setup.presence.leaves)
    total = hashlib.sha256(json.dumps(parts).encode())
    for k, v in sorted({**dict(network.named_parameters()), **dict(network.named_buffers())}.items()):
        raw = v.detach().cpu().contiguous().reshape(-1).view(torch.uint8)  # numpy has no bfloat16
        total.update(k.encode() + raw.numpy().tobytes())
    return total.hexdigest()


def behaviour(network: nn.Module, x: Tensor) -> list[int | str]:
    """Rounded outputs for the first rows of x, of a network that its class and attributes do not describe.

    That is one with a module of the user's own, whose `forward` may do anything, or with a function as an
    attribute or hook. The weights are moved a little: behind a last layer of zeros all networks are alike. Other
    networks: [].
    """
    if all(_described(m) for m in network.modules()):
        return []  # fingerprints of such networks never had outputs, and stay valid
    try:
        return _rounded(_outputs(network, x[:4], torch.double), 10**6)
    except RuntimeError:  # its `forward` asks for float32, where machines differ in the last digits
        pass
    try:
        return _rounded(_outputs(network, x[:4], torch.float), 10**3)
    except RuntimeError:  # it asks for types of its own, such as a frozen part in bfloat16
        return _rounded(_outputs(network, x[:4], None), 10)


def _described(m: nn.Module) -> bool:
    home = type(m).__module__
    held = [*vars(m).values(), *m._forward_hooks.values(), *m._forward_pre_hooks.values()]
    return home.startswith(ALWAYS_DESCRIBED) or (home.startswith(DESCRIBED) and not any(callable(v) for v in held))


@torch.no_grad()
def _outputs(network: nn.Module, x: Tensor, kind: torch.dtype | None) -> Tensor:
    """In one type, or None: its own. On the cpu and always with the same random numbers."""
    network, x = copy.deepcopy(network).to("cpu", kind).eval(), x.cpu()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for p in network.parameters():
            if p.is_floating_point():
                p.add_(0.1 * torch.randn(p.shape, dtype=kind or p.dtype))
        out: Tensor = network(x.to(kind) if kind and x.is_floating_point() else x)
    return out.double()


def _rounded(out: Tensor, fine: int) -> list[int | str]:
    """In units of the largest, whose first digits come first."""
    most = out.abs().max().clamp_min(1e-30)
    return [f"{most:.2e}", *(out / most * fine).nan_to_num().round().long().flatten().tolist()]
