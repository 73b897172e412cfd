"""What computed a result: versions, machine, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from focusfl import __version__


def describe() -> dict[str, Any]:
    import torch

    return {
        "focusfl": __version__,
        "commit": commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {_processor()}, {os.cpu_count()} cores",
    }


def commit() -> str | None:
    """Of the source this runs from, where it is a git checkout; "+" where files differ from it."""
    here = Path(__file__).resolve().parents[1]

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        name = git("rev-parse", "--short=12", "HEAD")
        return name + ("+" if git("status", "--porcelain", "--", str(here)) else "") if name else None
    except (OSError, subprocess.TimeoutExpired):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"
