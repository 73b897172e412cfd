"""Where the numbers live: cpu, cuda, mps, or the best that is there."""

from __future__ import annotations

import torch

from focusfl.errors import InputError

DEVICES = ("cpu", "cuda", "mps", "auto")


def find(name: str) -> torch.device:
    """The device of that name, if this machine has it."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if there[kind])
    if name not in there:
        raise InputError(f"device = {name!r}: expected one of {', '.join(DEVICES)}")
    if not there[name]:
        raise InputError(f"device = {name!r}: this machine or this build of torch has none; use cpu or auto")
    return torch.device(name)
