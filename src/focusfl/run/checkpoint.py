"""Checkpoints: the complete state after a round, in safetensors: nothing is unpickled, everything is checked.

FOLDER/checkpoint.safetensors             the newest
FOLDER/checkpoint.previous.safetensors    the one before it, from which a run resumes if the newest is not sound
FOLDER/checkpoint.unusable.safetensors    a newest one that was not sound, set aside
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from focusfl.core import State
from focusfl.core.tree import flatten, unflatten
from focusfl.run.early_stopping import Best
from focusfl.util import sealed
from focusfl.util.errors import InputError

FORMAT, WITHOUT_DIGEST = "focusfl-checkpoint-2", "focusfl-checkpoint-1"
NAME, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
UNUSABLE = "checkpoint.unusable.safetensors"
LARGEST = 1e12  # a server's number beyond this is finite, but training cannot continue from it


class NotSound(InputError):
    """A checkpoint from which the run cannot be resumed."""


def note_on_stderr(line: str) -> None:
    """The default `note`."""
    print(f"note: {line}", file=sys.stderr)


class Checkpoint(NamedTuple):
    """Where a run is.

    Attributes:
        t: Number of rounds done.
        server: The server's state.
        states: The agents' states, stacked.
        best: With early stopping, the best round so far.
        stopped: Whether training ended before the last round.
        rate: The factor of the learning rate; less than 1 only with lr = "auto".
        returns: The rounds to which the run has returned, where agents' states live elsewhere.
    """

    t: int
    server: State
    states: State
    best: Best | None = None
    stopped: bool = False
    rate: float = 1.0
    returns: tuple[int, ...] = ()


def save(
    folder: Path,
    fingerprint: str,
    t: int,
    server: State,
    states: State,
    best: Best | None = None,
    stopped: bool = False,
    rate: float = 1.0,
    returns: tuple[int, ...] = (),
) -> None:
    """Write the checkpoint of a run, atomically. The one before it is kept.

    Args:
        folder: The run's folder.
        fingerprint: Identifies the run.
        t: Number of rounds done.
        server: The server's state.
        states: The agents' states, stacked.
        best: With early stopping, the best round so far.
        stopped: Training ended before the last round.
        rate: The factor of the learning rate.
        returns: The rounds to which the run has returned.
    """
    newest = folder / NAME

    def keep_previous() -> None:
        if newest.exists():
            newest.replace(folder / PREVIOUS)

    header: dict[str, Any] = {"format": FORMAT, "fingerprint": fingerprint, "round": t}
    tree: State = {"server": server, "agents": states}
    if best is not None:
        header["best"] = {"round": best.round, "loss": best.loss, "since": best.since}
        header["best"] |= {} if best.judges is None else {"judges": list(best.judges)}
        tree["best"] = {"server": best.server, "agents": best.states}
    if stopped:
        header["stopped"] = True
    if rate != 1:
        header["rate"] = rate
    if returns:
        header["returns"] = list(returns)
    sealed.write_tensors(newest, flatten(tree), header, keep_previous)


def exists(folder: Path) -> bool:
    """Say whether a run in this folder has a checkpoint."""
    return (folder / NAME).exists() or (folder / PREVIOUS).exists()


def discard(folder: Path) -> None:
    """Delete the checkpoints of a run that starts over."""
    for name in (NAME, PREVIOUS):
        (folder / name).unlink(missing_ok=True)


def load(
    folder: Path,
    fingerprint: str,
    server: State,
    states: State,
    max_models: int | None = None,
    rounds: int | None = None,
    note: Callable[[str], None] = note_on_stderr,
) -> Checkpoint:
    """Read the newest sound checkpoint of a run.

    Args:
        folder: The run's folder. A newest checkpoint that is not sound is set aside if the one before it is.
        fingerprint: Identifies the run; the checkpoint of another run is refused.
        server: A server's state with the names, shapes and types that are expected.
        states: The same for the agents.
        max_models: The server's `w` may hold from one to this many models. None: as many as in `server`.
        rounds: How many rounds the run has.
        note: Called with a line about a checkpoint that is not the newest, or cannot be checked.

    Returns:
        The number of rounds done, the server's state, the agents' states, and what early stopping knows.

    Raises:
        InputError: If no checkpoint is sound (damaged, of another run, not finite or too large), or the newest was
            written by an older version whose state had another form.
    """
    expected = flatten({"server": server, "agents": states})
    newest, previous = folder / NAME, folder / PREVIOUS
    refused = NotSound(f"{newest}: missing")
    if newest.exists():
        try:
            return _read(newest, fingerprint, expected, max_models, rounds, note)
        except NotSound as error:
            refused = error
    if not previous.exists():
        raise InputError(f"{refused}. Delete it to start that run over, or use another folder") from refused
    try:
        found = _read(previous, fingerprint, expected, max_models, rounds, note)
    except NotSound as error:
        both = f"{refused}. Nor can {PREVIOUS} be used"
        raise InputError(f"{both}: delete both to start that run over, or use another folder") from error
    kept = ""
    if newest.exists():
        newest.replace(folder / UNUSABLE)
        kept = f" (kept as {UNUSABLE})"
    note(f"resuming from {previous}, after round {found[0]}, because of {refused}{kept}")
    return found


def problem(name: str, v: Tensor) -> str | None:
    """Say what is wrong with a tensor of the state: not finite, or a number of the server's too large; else None.

    Agents' numbers may be large: a bad agent's own model spoils no other, and the log label of an unused cluster is
    -1e30.
    """
    if not v.is_floating_point() or not v.numel():
        return None
    least, largest = (float(end) for end in v.aminmax())
    if not math.isfinite(least) or not math.isfinite(largest):
        return "is NaN or infinite"
    if name.startswith("server/") and max(-least, largest) > LARGEST:
        return f"is larger than {LARGEST:g}"
    if name.startswith("server/") and name.endswith("running_var") and least < -1e-6:  # batch norm adds 1e-5
        return "is negative, but a variance is not"
    return None


def _read(
    path: Path,
    fingerprint: str,
    expected: State,
    max_models: int | None,
    rounds: int | None,
    note: Callable[[str], None],
) -> Checkpoint:
    try:
        tensors, header, checked = sealed.read_tensors(path)
    except sealed.Damaged as error:
        raise NotSound(f"{path}: not a checkpoint that can be used: {error.reason}") from error
    t, old = header.get("round"), header.get("format") == WITHOUT_DIGEST
    if type(t) is not int or not (old or (header.get("format") == FORMAT and checked)):
        raise NotSound(f"{path}: not a checkpoint of focusfl, or damaged")
    if header.get("fingerprint") != fingerprint:
        raise NotSound(f"{path}: a checkpoint of another experiment (data, settings or seed differ)")
    if any(k in tensors for k in ("server/live", "server/bound")):
        other = "a checkpoint of focusfl 0.1, where the state of FOCUS had another form"
        raise InputError(f"{path}: {other}. Delete it to start that run over, or use another folder")
    if t < 1 or (rounds is not None and t > rounds):
        raise NotSound(f"{path}: its round is {t}, expected 1 to {rounds or 'the last'}")
    for k, v in expected.items():
        _check_tensor(path, k, tensors.get(k), v, max_models if k.startswith("server/w/") else None)
    if old:
        note(f"{path} is of an earlier version, without a digest: it cannot be checked for damage")
    tree = unflatten({k: tensors[k] for k in expected})
    best = _read_best(path, header, tensors, expected, max_models)
    rate = header.get("rate", 1.0)
    if not isinstance(rate, float) or not 0 < rate <= 1:
        raise NotSound(f"{path}: its factor of the learning rate is {rate!r}, expected a number above 0, at most 1")
    stopped = header.get("stopped") is True
    returns = header.get("returns", [])
    if not _whole_numbers(returns):
        raise NotSound(f"{path}: the rounds to which it returned cannot be read")
    return Checkpoint(t, tree.get("server", {}), tree.get("agents", {}), best, stopped, rate, tuple(returns))


def _whole_numbers(values: object) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _read_best(
    path: Path, header: dict[str, Any], tensors: State, expected: State, max_models: int | None
) -> Best | None:
    """Return the best round of a run with early stopping; None if it has none."""
    about = header.get("best")
    if about is None:
        return None
    for k, v in expected.items():
        _check_tensor(path, k, tensors.get(f"best/{k}"), v, max_models if k.startswith("server/w/") else None)
    tree = unflatten({k: tensors[f"best/{k}"] for k in expected})
    try:
        numbers = int(about["round"]), float(about["loss"]), int(about["since"])
        judges = about.get("judges")
        if judges is not None and not _whole_numbers(judges):
            raise ValueError
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise NotSound(f"{path}: what it says of its best round cannot be read") from error
    judged_by = None if judges is None else tuple(judges)
    return Best(*numbers, tree.get("server", {}), tree.get("agents", {}), judged_by)


def _check_tensor(path: Path, name: str, found: Tensor | None, expected: Tensor, max_models: int | None) -> None:
    if found is not None and max_models is not None and found.dim() and 1 <= len(found) <= max_models:
        expected = expected[:1].expand(len(found), *expected.shape[1:])
    if found is None or found.shape != expected.shape or found.dtype != expected.dtype:
        actual = "missing" if found is None else f"{list(found.shape)} {found.dtype}"
        raise NotSound(f"{path}: {name}: expected {list(expected.shape)} {expected.dtype}, found {actual}")
    if (wrong := problem(name, found)) is not None:
        raise NotSound(f"{path}: {name} {wrong}")
