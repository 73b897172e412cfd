"""A peer's environment and its process."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OURS = ("focusfl", "plain")  # in the environment this runs in
PATIENCE = 900.0  # seconds until an answer


class Failed(Exception):
    """A peer that cannot be installed or run, and why."""


def environment(peer: str, venvs: Path) -> Path:
    """The peer's python; its environment is made where it is missing or its list has changed."""
    if peer in OURS:
        return Path(sys.executable)
    wanted, folder = HERE / f"{peer}.txt", venvs.absolute() / peer
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"{peer}: installing into {folder} ...", flush=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-r", str(wanted)]
    for command in ([sys.executable, "-m", "venv", "--clear", str(folder)], pip):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"cannot be installed: {reason(done.stderr)}")
    stamp.write_text(digest)
    return python


def reason(log: str) -> str:
    """The line of a log that says most: the last that names an error, else the last."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR") or "Error" in line.split(":")[0]]
    return (errors or lines or ["nothing was said"])[-1][:300]


class Process:
    """worker.py in the peer's environment, in a folder of its own."""

    def __init__(self, peer: str, python: Path, work: Path, threads: int) -> None:
        self.folder = work.parent / f"{work.stem}-{peer}"
        self.folder.mkdir()
        package = work.parent / HERE.name  # alone in its folder, so that nothing else can be imported from there
        if not package.exists():
            package.symlink_to(HERE)
        counts = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC")
        eigen = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
        more = {
            **dict.fromkeys(counts, str(threads)),
            "XLA_FLAGS": f"{eigen} intra_op_parallelism_threads={threads}",
            "JAX_PLATFORMS": "cpu",
            "FLWR_TELEMETRY_ENABLED": "0",
            "PYTHONPATH": str(package.parent),
        }
        self.log = self.folder / "log.txt"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [str(python), "-m", "peers.worker", peer, str(work), "--threads", str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.folder,
                env={**os.environ, **more},
                start_new_session=True,
            )

    def ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(line, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise Failed(reason(self.log.read_text())) from None
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            raise Failed(f"no answer within {PATIENCE:g} s")
        answer = self.process.stdout.readline()
        if not answer:
            self.process.wait()
            raise Failed(reason(self.log.read_text()))
        said: dict[str, Any] = json.loads(answer)
        return said

    def close(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(60)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
