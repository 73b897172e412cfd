"""To tell networks apart that their class and attributes do not: by what they answer."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

# Modules from here: their class, plain attributes and weights say what they do, unless they hold a function.
# (Activations of transformers hold one; their class says which.)
DESCRIBED, ALWAYS = ("torch.nn.", "focusfl."), "transformers."


def answers(network: nn.Module, x: Tensor) -> list[int | str]:
    """Rounded outputs on the first rows of x, for a network that its attributes do not describe; else nothing.

    That is one with a module of the user's own, whose `forward` may say anything, or with a function as an
    attribute or a hook. The weights are moved a little: after a last layer of zeros all networks are alike.
    """
    if all(_described(m) for m in network.modules()):
        return []  # kept results of such networks were named without answers, and stay valid
    try:
        return _rounded(_answers(network, x[:4], torch.double), 10**6)
    except RuntimeError:  # its `forward` asks for float32, where machines differ in the last digits
        pass
    try:
        return _rounded(_answers(network, x[:4], torch.float), 10**3)
    except RuntimeError:  # it asks for types of its own, such as a frozen part in bfloat16
        return _rounded(_answers(network, x[:4], None), 10)


def _described(m: nn.Module) -> bool:
    home = type(m).__module__
    held = [*vars(m).values(), *m._forward_hooks.values(), *m._forward_pre_hooks.values()]
    return home.startswith(ALWAYS) or (home.startswith(DESCRIBED) and not any(callable(v) for v in held))


@torch.no_grad()
def _answers(network: nn.Module, x: Tensor, kind: torch.dtype | None) -> Tensor:
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
