"""Files that carry a digest of their content, so that a flipped bit or an edit is noticed when they are read.

A JSON object has the key `digest`, last; so has each line of a .jsonl file. In a safetensors file it is in the
header. Files of earlier versions have no digest and are read as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from focusfl.util import files
from focusfl.util.errors import InputError

KEY, KIND = "digest", "sha256:"
HEADER = "focusfl"  # where the header is in the metadata of a safetensors file


class Damaged(InputError):
    """A file is not what was written.

    Attributes:
        reason: What is wrong with it.
    """

    def __init__(self, path: Path, reason: str, advice: str) -> None:
        super().__init__(f"{path}: {reason}; {advice}")
        self.reason = reason


def add_digest(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON object with a digest of all other keys.

    Example:
        >>> sorted(add_digest({"loss": 0.5}))
        ['digest', 'loss']
    """
    content = {k: v for k, v in value.items() if k != KEY}
    return {**content, KEY: _json_digest(content)}


def strip_digest(value: Any, path: Path, place: str = "") -> Any:
    """Return a JSON value without its digest.

    Args:
        value: What was read. Without a digest it is returned as it is.
        path: The file, for messages.
        place: Where in the file, for messages.

    Raises:
        Damaged: The digest is not that of the value.
    """
    claims = _digests(value) if isinstance(value, dict) else {}
    if not claims:
        return value
    content = {k: v for k, v in value.items() if k not in claims}
    if claims != {KEY: _json_digest(content)}:
        advice = f"restore the file, delete it to compute it again, or delete {KEY!r} if you changed it on purpose"
        raise Damaged(path, f"{place}damaged or edited, its digest does not match", advice)
    return content


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object with its digest, atomically."""
    files.write_json(path, add_digest(value))


def write_rows(path: Path, head: Mapping[str, Any], rows: list[Any]) -> None:
    """Write {**head, "rows": rows} with its digest, as `files.write_rows` does."""
    content = {k: v for k, v in head.items() if k != KEY}
    files.write_rows(path, {**content, KEY: _json_digest({**content, "rows": rows})}, rows)


def read_json(path: Path) -> Any:
    """Read a JSON file, check its digest if it has one, and return it without.

    Raises:
        InputError: The file is not JSON, or damaged.
    """
    return strip_digest(files.read_json(path), path)


def append_line(path: Path, value: Mapping[str, Any], sync: bool = True) -> None:
    """Append a JSON object with its digest as a line; a last line that a kill cut short is removed first.

    Args:
        path: The file; it is created if necessary.
        value: The object.
        sync: Wait until the line is on the disk.
    """
    line = json.dumps(add_digest(value), allow_nan=False).encode() + b"\n"
    with path.open("a+b") as handle:
        end = _end_of_lines(handle.seek(0, os.SEEK_END), path)
        if end != handle.tell():
            handle.truncate(end)
        handle.write(line)
        if sync:
            handle.flush()
            os.fsync(handle.fileno())


def read_lines(path: Path, torn_anywhere: bool = False) -> list[dict[str, Any]]:
    """Read a file of JSON objects, one per line, without their digests and without a last line cut short by a kill.

    Args:
        path: The file; without one there are no lines.
        torn_anywhere: Skip every line that is not JSON: earlier versions appended after one that was cut short.

    Raises:
        Damaged: Another line is not a JSON object, or its digest does not match.
    """
    rows: list[dict[str, Any]] = []
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    for number, line in enumerate(lines, start=1):
        place, last = f"line {number}: ", number == len(lines)
        try:
            row = files.parse_json(line.decode())
        except (ValueError, RecursionError) as error:
            if torn_anywhere or last:
                continue
            raise Damaged(path, f"{place}not JSON", "delete that line, or the file") from error
        if not isinstance(row, dict):
            raise Damaged(path, f"{place}not a JSON object", "delete that line, or the file")
        rows.append(strip_digest(row, path, place))
    return rows


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    header: Mapping[str, Any] | None = None,
    before_replace: Callable[[], object] = lambda: None,
) -> None:
    """Write tensors as safetensors, with a digest of all of it, atomically.

    Args:
        path: The file.
        tensors: By name.
        header: Is stored with the tensors.
        before_replace: Called when the new content is on the disk, just before it takes the place of the old.
    """
    stored: dict[str, Tensor] = {}
    memory = set[int]()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        stored[name] = own.clone() if own.untyped_storage().data_ptr() in memory else own  # safetensors refuses it
        memory.add(own.untyped_storage().data_ptr())
    content = dict(header or {})
    # one text: safetensors writes several in random order, and equal runs write equal files
    text = json.dumps(content | {KEY: _tensor_digest(content, stored)})

    def fill(temporary: Path) -> None:
        save_file(stored, temporary, metadata={HEADER: text})
        files.sync_file(temporary)
        before_replace()

    files.write(path, fill)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], bool]:
    """Read a file of tensors and check its digest.

    Args:
        path: The file.

    Returns:
        The tensors, the header without the digest, and whether there was a digest: earlier versions wrote none.

    Raises:
        Damaged: The file is not safetensors, or its digest does not match.
    """
    advice = "delete it, and run the command that wrote it again"
    try:
        with safe_open(path, framework="pt") as handle:
            metadata = handle.metadata() or {}
            header = json.loads(metadata.get(HEADER, "{}"))
            # cloned: in the file they are not aligned, and kernels round differently where memory is not aligned
            tensors = {k: handle.get_tensor(k).clone() for k in handle.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise Damaged(path, f"truncated, or not written by focusfl ({error})", advice) from error
    if not isinstance(header, dict) or metadata.keys() - {HEADER}:
        raise Damaged(path, "not written by focusfl", advice)
    claims = _digests(header)
    content = {k: v for k, v in header.items() if k not in claims}
    if claims and claims != {KEY: _tensor_digest(content, tensors)}:
        raise Damaged(path, "damaged or edited, its digest does not match", advice)
    return tensors, content, bool(claims)


def read_header(path: Path) -> dict[str, Any]:
    """Return the header of a file of tensors, unchecked; empty if it has none or is not such a file."""
    try:
        with safe_open(path, framework="pt") as handle:
            header = json.loads((handle.metadata() or {}).get(HEADER, "{}"))
    except (SafetensorError, OSError, ValueError):
        return {}
    return header if isinstance(header, dict) else {}


def _digests(value: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that are a digest by their name or by their look: one flipped bit cannot hide both."""
    return {k: v for k, v in value.items() if k == KEY or (isinstance(v, str) and v.startswith(KIND))}


def _json_digest(value: Any) -> str:
    as_read = json.loads(json.dumps(value))  # keys are text, tuples are lists
    text = json.dumps(as_read, sort_keys=True, separators=(",", ":"))
    return KIND + hashlib.sha256(text.encode()).hexdigest()


def _tensor_digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, v in sorted(tensors.items()):
        total.update(json.dumps([name, str(v.dtype), list(v.shape)]).encode())
        total.update(v.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy has no bfloat16
    return KIND + total.hexdigest()


def _end_of_lines(size: int, path: Path) -> int:
    """Where the last complete line ends."""
    if not size:
        return 0
    with path.open("rb") as handle:
        handle.seek(-1, os.SEEK_END)
        if handle.read(1) == b"\n":
            return size
    return path.read_bytes().rfind(b"\n") + 1
