"""Checkpoints: the whole state after a round, in safetensors. Checked before it is believed; never unpickled."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from focusfl.core import State
from focusfl.core.tree import flatten, unflatten
from focusfl.util import files
from focusfl.util.errors import InputError

FORMAT = "focusfl-checkpoint-1"
NAME = "checkpoint.safetensors"


def save(folder: Path, fingerprint: str, t: int, server: State, states: State) -> None:
    """After t rounds."""
    flat = flatten({"server": server, "agents": states})
    tensors = {k: v.detach().cpu().contiguous() for k, v in flat.items()}
    header = json.dumps({"format": FORMAT, "fingerprint": fingerprint, "round": t})
    files.write(folder / NAME, lambda temporary: save_file(tensors, temporary, metadata={"focusfl": header}))


def load(
    folder: Path, fingerprint: str, server: State, states: State, max_models: int | None = None
) -> tuple[int, State, State]:
    """The round, the server's and the agents' state.

    Args:
        folder: Where the checkpoint is.
        fingerprint: Of the run; a checkpoint of another run is refused.
        server: A state of the same shape as the one expected,
        states: and the agents'.
        max_models: The server's w may hold from one to this many models; None: as many as here.

    Raises:
        InputError: If the checkpoint is damaged, belongs to another run or was written by an older version.
    """
    path = folder / NAME
    try:
        with safe_open(path, framework="pt") as handle:
            header = json.loads((handle.metadata() or {}).get("focusfl", "{}"))
            # cloned: in the file they lie anywhere, and kernels round otherwise where memory is not aligned
            tensors = {k: handle.get_tensor(k).clone() for k in handle.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise _unusable(path, f"truncated or not a checkpoint ({error})") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT or not isinstance(header.get("round"), int):
        raise _unusable(path, "not a checkpoint of focusfl")
    if header.get("fingerprint") != fingerprint:
        raise _unusable(path, "a checkpoint of another experiment (data, settings or seed differ)")
    wanted = flatten({"server": server, "agents": states})
    if any(k in tensors for k in ("server/live", "server/bound")):
        raise _unusable(path, "a checkpoint of focusfl 0.1, whose FOCUS kept its state in another form")
    for k, v in wanted.items():
        _check(path, k, tensors.get(k), v, max_models if k.startswith("server/w/") else None)
    tree = unflatten({k: tensors[k] for k in wanted})
    return header["round"], tree.get("server", {}), tree.get("agents", {})


def _check(path: Path, name: str, found: Tensor | None, wanted: Tensor, max_models: int | None) -> None:
    if found is not None and max_models is not None and found.dim() and 1 <= len(found) <= max_models:
        wanted = wanted[:1].expand(len(found), *wanted.shape[1:])
    if found is None or found.shape != wanted.shape or found.dtype != wanted.dtype:
        what = "missing" if found is None else f"{list(found.shape)} {found.dtype}"
        raise _unusable(path, f"{name}: expected {list(wanted.shape)} {wanted.dtype}, found {what}")
    if found.is_floating_point() and not torch.isfinite(found).all():
        raise _unusable(path, f"{name}: NaN or infinite")


def _unusable(path: Path, why: str) -> InputError:
    return InputError(f"{path}: {why}. Delete it to start that run over, or use another folder")
