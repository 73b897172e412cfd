"""What a node remembers of a run: in Flower's `context.state`, and on disk if it has a folder for that.

After a restart of the SuperNode, or in a resumed run, which has a new number, `context.state` is empty; the node
then continues from the folder. The states before and after the last round are stored, because a server that was
killed before it wrote its checkpoint asks for that round again. If the run may return to its best round
(course.py), the state of that round is stored, too. The folder holds the latest runs only; `keep-runs` in the
node's configuration says how many.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

from flwr.app import ConfigRecord, Context
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from focusfl.core import State
from focusfl.core.tree import flatten, unflatten
from focusfl.flower.protocol.course import STRAIGHT, Course
from focusfl.flower.protocol.wire import Refused, to_arrays, to_tree
from focusfl.util import files
from focusfl.util.errors import require

MARK, BEFORE, AFTER, BEST = "focusfl.memory", "focusfl.before", "focusfl.after", "focusfl.best"
STORED = {"before": BEFORE, "after": AFTER, "best": BEST}  # in the file, and in the context
NUMBERS = ("t", "returns", "best")
KEY = re.compile(r"[0-9a-f]{8,64}")
KEEP_RUNS = 20  # in the folder, if the node's configuration does not say


class Memory:
    """What a node remembers of the run `key` (hex digits, chosen by the server)."""

    def __init__(self, context: Context, key: str) -> None:
        if not KEY.fullmatch(key):
            raise Refused("the run's key is not hex digits")
        self.records, self.key = context.state, key
        folder, runs = context.node_config.get("keep"), context.node_config.get("keep-runs", KEEP_RUNS)
        require("keep-runs", runs, type(runs) is int and runs >= 1, "in the node's configuration, 1 or more")
        self.max_runs = int(runs)
        self.folder = Path(str(folder)).expanduser() if folder else None
        self.path = None if self.folder is None else self.folder / f"{key}.safetensors"

    @property
    def t(self) -> int | None:
        """The last round this node trained in, from 0; -1 if it has only enrolled, None if nothing is stored."""
        mark = self._mark
        return None if mark is None else mark["t"]

    @property
    def _mark(self) -> dict[str, int] | None:
        """The last round `t`, how many `returns` it knew then, and the round of the `best` state, or -1."""
        mark = self.records.config_records.get(MARK)
        if mark is not None and mark["key"] == self.key:
            return {name: int(str(mark[name])) for name in NUMBERS}
        stored = None if self.path is None or not self.path.exists() else _read(self.path)
        if stored is None:
            return None
        numbers, tree = stored
        for name, record in STORED.items():
            self.records[record] = to_arrays(tree.get(name, {}))
        self.records[MARK] = ConfigRecord({"key": self.key, **numbers})
        return numbers

    def recall(self, t: int, course: Course = STRAIGHT) -> State | None:
        """Return the state to start round t with; None if no stored state fits.

        Where the run has returned since this node's last round, that is its state after the round returned to.
        Of several such returns the first decides: in what followed it, this node took no part.
        """
        mark = self._mark
        if mark is None or mark["returns"] > len(course.returns):
            return None
        if mark["returns"] < len(course.returns):
            to = course.returns[mark["returns"]]
            if mark["t"] < to:
                return to_tree(self.records, AFTER)
            return to_tree(self.records, BEST) if mark["best"] == to else None
        if mark["t"] > t:
            return None
        return to_tree(self.records, BEFORE if mark["t"] == t else AFTER)

    def recall_best(self, course: Course) -> State | None:
        """Return the state after the best round, if this node has it."""
        mark = self._mark
        return to_tree(self.records, BEST) if mark is not None and mark["best"] == course.best else None

    def keep(self, t: int, before: State, after: State, course: Course = STRAIGHT) -> None:
        """Remember the states before and after round t, and the one of the best round.

        What is best is known when the next round begins, so a best round that is new to this node is the one after
        which it has the state `before` (a node that has just enrolled: `after`).
        """
        mark = self._mark
        best = None if course.best is None else before or after
        if mark is not None and best is not None and mark["best"] == course.best:
            best = to_tree(self.records, BEST)
        states = {"before": before, "after": after} | ({} if best is None else {"best": best})
        numbers = {"t": t, "returns": len(course.returns), "best": -1 if course.best is None else course.best}
        for name, record in STORED.items():
            self.records[record] = to_arrays(states.get(name, {}))
        self.records[MARK] = ConfigRecord({"key": self.key, **numbers})
        if self.path is not None:
            flat = flatten(states)
            # copies: they may share storage, which safetensors refuses
            tensors = {k: v.detach().clone().contiguous() for k, v in flat.items()}
            header = {"focusfl": json.dumps(numbers)}
            files.make_folder(self.path.parent)
            self._make_room(self.path)
            files.write(self.path, lambda temporary: save_file(tensors, temporary, metadata=header), private=True)

    def forget(self) -> None:
        """Forget this run's state."""
        for name in (MARK, *STORED.values()):
            self.records.pop(name, None)
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _make_room(self, path: Path) -> None:
        """Delete the states of the oldest runs, so that with `path` no more than `max_runs` are kept."""
        stored = [old for old in path.parent.glob("*.safetensors") if KEY.fullmatch(old.stem) and old != path]
        with suppress(FileNotFoundError):  # another run of this node does the same
            stored.sort(key=lambda old: old.stat().st_mtime)
            for old in stored[: max(len(stored) + 1 - self.max_runs, 0)]:
                old.unlink()


def _read(path: Path) -> tuple[dict[str, int], State] | None:
    """Read the mark and the states from disk; None if the file is damaged: the node is then enrolled again."""
    try:
        with safe_open(path, framework="pt") as handle:
            header = json.loads((handle.metadata() or {})["focusfl"])
            tensors = {k: handle.get_tensor(k) for k in handle.keys()}  # noqa: SIM118
        earlier = {"returns": 0, "best": -1}  # versions that stored no best state
        return {name: int((earlier | header)[name]) for name in NUMBERS}, unflatten(tensors)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return None
