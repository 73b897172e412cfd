"""What pyproject.toml says that focusfl depends on."""

import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
USER_EXTRAS = ("images", "tables", "text", "export", "plot", "tracking", "notebook", "flower")


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def required(*extras: str) -> dict[str, Requirement]:
    """The requirements of focusfl with these extras by name; an extra of its own stands for what it contains."""
    project = pyproject()["project"]
    found: dict[str, Requirement] = {}
    waiting = [*project["dependencies"], *(line for e in extras for line in project["optional-dependencies"][e])]
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.name == "focusfl":
            waiting += [line for extra in requirement.extras for line in project["optional-dependencies"][extra]]
        else:
            found[canonicalize_name(requirement.name)] = requirement
    return found
