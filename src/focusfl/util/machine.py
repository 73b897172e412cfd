"""The environment that computed a result: versions, machine, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from focusfl import __version__


def provenance() -> dict[str, Any]:
    """Return the versions, the commit and the machine that a result was computed with, for its file."""
    import torch

    return {
        "focusfl": __version__,
        "commit": git_commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {_processor()}, {os.cpu_count()} cores",
    }


def git_commit() -> str | None:
    """Return the commit of the running source, with "+" if files differ from it; None outside a git checkout."""
    source = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        process = subprocess.run(["git", "-C", str(source), *arguments], capture_output=True, text=True, timeout=10)
        return process.stdout.strip() if process.returncode == 0 else ""

    try:
        name = git("rev-parse", "--short=12", "HEAD")
        return name + ("+" if git("status", "--porcelain", "--", str(source)) else "") if name else None
    except (OSError, subprocess.TimeoutExpired):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"
