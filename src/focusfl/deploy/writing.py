"""Files of a deployment: secrets that only their owner reads, and texts made from templates."""

from __future__ import annotations

import os
import re
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"


def secret(path: Path, content: bytes) -> None:
    """For its owner alone from the first moment; never over a file that is there."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
        handle.write(content)


def public(path: Path, content: bytes | str, mode: int = 0o644) -> None:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)


def script(path: Path, **values: object) -> None:
    """The template of that name, ready to start."""
    public(path, fill(path.name, **values), 0o755)


def fill(template: str, **values: object) -> str:
    """The template with each @NAME@ replaced by its value."""
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    return re.sub(r"@([A-Z_]+)@", lambda found: str(values[found[1].lower()]), text)
