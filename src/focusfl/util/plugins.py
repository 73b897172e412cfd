"""Code of the user's own: objects named as "my_module:Name", and entry points of installed packages.

Nothing is imported unless the user names it in this command. To list entry points does not load them.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import traceback
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from focusfl.util.errors import InputError, nearest

Group = Literal["focusfl.algorithms", "focusfl.data", "focusfl.metrics"]
_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_reference(text: str) -> bool:
    """Return whether a text has the form of a name in a module.

    Example:
        >>> is_reference("my_package.methods:MyMethod"), is_reference("qffl:q=0.1"), is_reference("mlp:64")
        (True, False, False)
    """
    return _REFERENCE.fullmatch(text) is not None


def load_object(text: str) -> Any:
    """Import a module from the current folder or the installed packages, and return what it has by a name.

    A module in the current folder comes first. Modules that it imports while it is loaded may lie there too.

    Args:
        text: Module and name, for example "my_module:MyMethod" or "my_package.data:make_federation".

    Raises:
        InputError: There is no such module or name, or importing the module failed; the message names the line.

    Example:
        >>> load_object("math:floor")(2.5)
        2
        >>> load_object("sys:exitt")
        Traceback (most recent call last):
        focusfl.util.errors.InputError: sys:exitt: the module sys (built-in) has no 'exitt': did you mean 'exit'?
    """
    with _current_folder_first():
        return _load(text)


def entry_points(group: Group) -> list[str]:
    """Return the names of the entry points that installed packages have in a group, without loading them."""
    return sorted({point.name for point in metadata.entry_points(group=group)})


def entry_point(group: Group, name: str) -> Any:
    """Load the entry point that the user named.

    Raises:
        InputError: There is none of that name, two packages have one, or loading it failed.
    """
    found = {point.value for point in metadata.entry_points(group=group, name=name)}
    if not found:
        raise InputError(f"unknown entry point {name!r} of {group}: {nearest(name, entry_points(group))}")
    if len(found) > 1:
        raise InputError(f"{name}: installed packages have several entry points of that name: {', '.join(found)}")
    try:
        return _load("".join(found.pop().split("[")[0].split()))
    except InputError as error:
        raise InputError(f"{name}, an entry point of {group}: {error}") from error


def _load(text: str) -> Any:
    if not is_reference(text):
        raise InputError(f"{text}: expected module:name, for example my_module:MyMethod")
    name, _, member = text.partition(":")
    module = _import(name, text)
    if not hasattr(module, member):
        place = getattr(module, "__file__", None) or "built-in"
        hint = nearest(member, [known for known in vars(module) if not known.startswith("_")]).partition(" Known:")
        close = f": {hint[0]}" if hint[1] else ""
        raise InputError(f"{text}: the module {name} ({place}) has no {member!r}{close}")
    return getattr(module, member)


@contextlib.contextmanager
def _current_folder_first() -> Iterator[None]:
    """Look for modules in the current folder first; afterwards no longer, as other imports are not meant."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)


def _import(name: str, text: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            place = f"in {Path.cwd()} or among the installed packages"
            raise InputError(f"{text}: there is no module {error.name!r} {place}") from error
        raise InputError(_failure(name, text, error)) from error
    except (Exception, SystemExit) as error:
        raise InputError(_failure(name, text, error)) from error


def _failure(name: str, text: str, error: BaseException) -> str:
    """Say in one sentence why an import failed: the line of the module, or of one it imports, and the error."""
    why = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        file, line, why = error.filename, error.lineno, f"{type(error).__name__}: {error.msg}"
    else:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
        own = [f for f in frames if Path(f.filename).stem == name.rpartition(".")[2]]
        last = (own or frames)[-1]
        file, line = last.filename, last.lineno
    return f"{text}: importing {name} failed in {file}, line {line}: {why}"
