"""Run a download client (npm, the hub's) in a process that can be watched and stopped."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time
from pathlib import Path

from focusfl.data.sources import Unavailable
from focusfl.data.store_bar import Step, bar

STALL = 90.0  # seconds without a new byte after which a download is given up


def run(command: list[str], into: Path, what: str, total: int) -> None:
    """Run a download client; the bar follows the growth of `into`. Killed when nothing grows any more."""
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_UPDATE_NOTIFIER": "1"}
    log = into / "client.log"
    with log.open("wb") as said, bar(what, total) as step:
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
