"""The device that computes: cpu, cuda, mps or the best one available; and whether it supports bfloat16."""

from __future__ import annotations

import torch

from focusfl.util.errors import InputError

DEVICES = ("cpu", "cuda", "mps", "auto")
NO_BF16_SUPPORT = "precision = bf16: this processor has no bfloat16 support, so training stays in float32"


def find_device(name: str) -> torch.device:
    """Return the device of that name.

    Args:
        name: "cpu", "cuda", "mps", or "auto" for the first of cuda, mps and cpu that this machine has.

    Raises:
        InputError: The name is unknown, or this machine has no such device.

    Example:
        >>> find_device("cpu")
        device(type='cpu')
    """
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    if name not in available:
        raise InputError(f"device = {name!r}: expected one of {', '.join(DEVICES)}")
    if not available[name]:
        raise InputError(f"device = {name!r}: this machine or this build of torch has none; use cpu or auto")
    return torch.device(name)


def supports_bf16(device: torch.device) -> bool:
    """Return whether the device multiplies bfloat16 in hardware; without that it is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return any(capabilities.get(unit, False) for unit in ("avx512_bf16", "amx_bf16", "sve_bf16", "bf16"))
