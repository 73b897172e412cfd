"""A SuperNode that runs only the apps on its list: python -m focusfl.deploy.allowed_apps LIST ARGUMENTS.

The server sends nodes the app, which is Python code. Flower 1.41 can check signatures of apps
(`--trusted-entities`), but demands besides that the SuperLink has a licence, so every app is refused without the
commercial edition. Here Flower's own check is kept, and what it asks is replaced: whether the app's hash is on the
list. It comes before the app is stored at the node, hence before any of its code runs. A refused app gets the reply
that Flower sends for one whose signature is wrong.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import io
import json
import logging
import os
import re
import shutil
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from focusfl.util.errors import InputError

LOGGER = logging.getLogger("flwr")
PROJECT, MANIFEST = "pyproject.toml", ".info/CONTENT"
MAX_SIZE = 1 << 28  # bytes of an app, unpacked


def app_hash(fab: bytes) -> str:
    """Return the hash of an app's code, in hex digits.

    It covers every file's name and content, except the run configuration in pyproject.toml: settings are no code,
    and the server may override them anyway. Nor does it cover Flower's manifest, which repeats the files' hashes.

    Args:
        fab: The app as Flower packs it, a zip file.

    Returns:
        A SHA-256.

    Raises:
        InputError: If it is not an app, or contains two files of the same name.
    """
    found, (project, files) = hashlib.sha256(b"focusfl app\0"), _unpack(fab)
    project.get("tool", {}).get("flwr", {}).get("app", {}).pop("config", None)
    files[PROJECT] = json.dumps(project, sort_keys=True, default=str).encode()
    for name, content in sorted(files.items()):
        for part in (name.encode(), content):
            found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()


def folder_hash(folder: Path) -> str:
    """Return the hash of the app in a folder, as `app_hash` computes it from what Flower packs."""
    from flwr.cli.build import build_fab_from_disk

    try:
        return app_hash(build_fab_from_disk(folder))
    except (ValueError, OSError) as error:
        raise InputError(f"{folder} is not a Flower app: {error}") from error


def read_list(path: Path) -> set[str]:
    """Read the hashes of the allowed apps: one per line; what follows a # is a comment.

    Raises:
        InputError: If the file cannot be read, is empty, or a line is not a hash.
    """
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); it lists the hashes of the allowed apps") from error
    hashes = {line for line in lines if line}
    odd = sorted(line for line in hashes if not re.fullmatch("[0-9a-f]{64}", line))
    if odd or not hashes:
        what = f"has the line {odd[0][:80]!r}" if odd else "is empty"
        raise InputError(f"{path} {what}; expected hashes as focusfl deploy app-hash prints them, one per line")
    return hashes


def is_allowed(fab: Any, run: Any, allowed: set[str]) -> bool:
    """Return whether an app may run here.

    Flower finds the code of a run by name, version and hash, as the server states them: they must be the app's own.

    Args:
        fab: Flower's Fab.
        run: Flower's Run.
        allowed: The hashes of the allowed apps.
    """
    try:
        found = app_hash(fab.content)
        project, _ = _unpack(fab.content)
        publisher = project["tool"]["flwr"]["app"]["publisher"]
        name = f"{publisher}/{project['project']['name']}", project["project"]["version"]
    except (InputError, KeyError, TypeError) as error:
        LOGGER.error("An app was refused: it cannot be read (%s)", error)
        return False
    content = hashlib.sha256(fab.content).hexdigest()
    if (run.fab_id, run.fab_version) != name or not run.fab_hash == fab.hash_str == content:
        LOGGER.error("An app was refused: the server calls it %s, which is not what it contains", run.fab_id)
        return False
    if found not in allowed:
        LOGGER.error("An app was refused: %s, whose hash %s is not in the list of allowed apps", name[0], found)
    return found in allowed


def guard(supernode: ModuleType, allowed: set[str]) -> None:
    """Make Flower's SuperNode run the allowed apps only.

    Args:
        supernode: Flower's module flwr.supernode.start_client_internal.
        allowed: The hashes of the allowed apps.

    Raises:
        InputError: If this version of Flower works in another way.
    """
    names, module = {"get_run", "get_fab", "trusted_entities"}, vars(supernode)
    pull: Callable[..., Any] | None = module.get("_pull_and_store_message")
    source = inspect.getsource(pull) if pull is not None else ""
    if (
        pull is None
        or not names <= set(inspect.signature(pull).parameters)
        or "_verify_fab(fab, trusted_entities)" not in source
    ):
        raise InputError("this version of Flower cannot check apps against a list: install focusfl[flower] again")
    runs: dict[str, Any] = {}

    def pull_allowed(
        *, get_run: Callable[[int], Any], get_fab: Callable[[str, int], Any], trusted_entities: Any, **options: Any
    ) -> Any:
        def remember_run(run_id: int) -> Any:
            runs["last"] = get_run(run_id)
            return runs["last"]

        def with_license(fab_hash: str, run_id: int) -> Any:
            fab = get_fab(fab_hash, run_id)
            return type(fab)(fab.hash_str, fab.content, {"valid_license": "true"})

        return pull(get_run=remember_run, get_fab=with_license, trusted_entities={"list": ""}, **options)

    module["_pull_and_store_message"] = pull_allowed
    module["_verify_fab"] = lambda fab, _: is_allowed(fab, runs["last"], allowed)


def main() -> None:
    """Run flower-supernode with the arguments after the first, which is the list."""
    try:
        allowed, home = read_list(Path(sys.argv[1])), os.environ.get("FLWR_HOME")
        if any(word.startswith("--trusted-entities") for word in sys.argv):
            raise InputError("--trusted-entities cannot be combined with a list of allowed apps; leave one out")
        if not home:
            raise InputError("FLWR_HOME is not set; set it to a folder that only this node uses")
        guard(importlib.import_module("flwr.supernode.start_client_internal"), allowed)
    except InputError as error:
        sys.exit(f"error: {error}")
    from flwr.supernode.cli import flower_supernode

    # Flower does not unpack an app again that it has unpacked before: start without those of unchecked times.
    shutil.rmtree(Path(home) / "apps", ignore_errors=True)
    sys.argv = ["flower-supernode", *sys.argv[2:]]
    flower_supernode()


def _unpack(fab: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return an app's parsed pyproject.toml, and its other files by name."""
    try:
        with zipfile.ZipFile(io.BytesIO(fab)) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > MAX_SIZE:
                raise InputError(f"it has more than {MAX_SIZE} bytes")
            if len({entry.filename for entry in entries}) != len(entries):
                raise InputError("it contains two files of the same name")
            files = {entry.filename: archive.read(entry) for entry in entries if entry.filename != MANIFEST}
        return tomllib.loads(files.pop(PROJECT).decode()), files
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise InputError(f"it is not a Flower app ({error})") from error


if __name__ == "__main__":
    main()
