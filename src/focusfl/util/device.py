"""Where the numbers live: cpu, cuda, mps, or the best that is there; and what it can multiply fast."""

from __future__ import annotations

import torch

from focusfl.util.errors import InputError

DEVICES = ("cpu", "cuda", "mps", "auto")
NO_UNITS = "precision = bf16: this processor has no bfloat16 units, so it stays float32"


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


def bf16_units(place: torch.device) -> bool:
    """Does it multiply bfloat16 in hardware? Without, such products are slower than float32's."""
    if place.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    can = torch.cpu.get_capabilities() if place.type == "cpu" else {}
    return any(can.get(unit, False) for unit in ("avx512_bf16", "amx_bf16", "sve_bf16", "bf16"))
