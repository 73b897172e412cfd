"""Checkpoints: the complete state after a round, in safetensors: nothing is unpickled, everything is checked."""

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
    """Write the checkpoint of a run, atomically.

    Args:
        folder: The run's folder.
        fingerprint: Identifies the run.
        t: Number of rounds done.
        server: The server's state.
        states: The agents' states, stacked.
    """
    flat = flatten({"server": server, "agents": states})
    tensors = {k: v.detach().cpu().contiguous() for k, v in flat.items()}
    header = json.dumps({"format": FORMAT, "fingerprint": fingerprint, "round": t})
    files.write(folder / NAME, lambda temporary: save_file(tensors, temporary, metadata={"focusfl": header}))


def load(
    folder: Path, fingerprint: str, server: State, states: State, max_models: int | None = None
) -> tuple[int, State, State]:
    """Read the checkpoint of a run.

    Args:
        folder: The run's folder.
        fingerprint: Identifies the run; the checkpoint of another run is refused.
        server: A server's state with the names, shapes and types that are expected.
        states: The same for the agents.
        max_models: The server's `w` may hold from one to this many models. None: as many as in `server`.

    Returns:
        The number of rounds done, the server's state and the agents' states.

    Raises:
        InputError: If the checkpoint is damaged, belongs to another run or was written by an older version whose
            state had another form.
    """
    path = folder / NAME
    try:
        with safe_open(path, framework="pt") as handle:
            header = json.loads((handle.metadata() or {}).get("focusfl", "{}"))
            # cloned: in the file they are not aligned, and kernels round differently where memory is not aligned
            tensors = {k: handle.get_tensor(k).clone() for k in handle.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise _unusable(path, f"truncated or not a checkpoint ({error})") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT or not isinstance(header.get("round"), int):
        raise _unusable(path, "not a checkpoint of focusfl")
    if header.get("fingerprint") != fingerprint:
        raise _unusable(path, "a checkpoint of another experiment (data, settings or seed differ)")
    if any(k in tensors for k in ("server/live", "server/bound")):
        raise _unusable(path, "a checkpoint of focusfl 0.1, where the state of FOCUS had another form")
    expected = flatten({"server": server, "agents": states})
    for k, v in expected.items():
        _check_tensor(path, k, tensors.get(k), v, max_models if k.startswith("server/w/") else None)
    tree = unflatten({k: tensors[k] for k in expected})
    return header["round"], tree.get("server", {}), tree.get("agents", {})


def _check_tensor(path: Path, name: str, found: Tensor | None, expected: Tensor, max_models: int | None) -> None:
    if found is not None and max_models is not None and found.dim() and 1 <= len(found) <= max_models:
        expected = expected[:1].expand(len(found), *expected.shape[1:])
    if found is None or found.shape != expected.shape or found.dtype != expected.dtype:
        actual = "missing" if found is None else f"{list(found.shape)} {found.dtype}"
        raise _unusable(path, f"{name}: expected {list(expected.shape)} {expected.dtype}, found {actual}")
    if found.is_floating_point() and not torch.isfinite(found).all():
        raise _unusable(path, f"{name}: NaN or infinite")


def _unusable(path: Path, reason: str) -> InputError:
    return InputError(f"{path}: {reason}. Delete it to start that run over, or use another folder")
