"""Measure the shape of the source: how far a reader has to walk, and how much stands twice.

    python tools/shape.py                 this checkout
    python tools/shape.py ../older/src    another one, for comparison

It runs `focusfl compare` on the digits and one round of the Flower simulation under a profiler, and counts the
distinct functions of the package that are entered, and the files they are in; the rest is read from the source.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

COMPARE = """
import sys, threading
from pathlib import Path
src, out = sys.argv[1], Path(sys.argv[2])
seen = {}

def watch(frame, event, arg):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(src) and code.co_flags & 1 and not code.co_name.startswith("<"):
        if code.co_name == "write_json" and frame.f_locals["path"].name == "results.json":
            sys.setprofile(None)  # one method, one seed: the first time is the last
        seen.setdefault((code.co_filename, code.co_qualname), len(seen) + 1)

import focusfl.cli
sys.argv = ["focusfl", "compare", "--algorithms", "focus,fedavg", "--seeds", "0", "--rounds", "6", "--out", str(out)]
threading.setprofile(watch)
sys.setprofile(watch)
try:
    focusfl.cli.main()
except SystemExit:
    pass
sys.setprofile(None)
e_step = next(n for (_, name), n in seen.items() if name.split(".")[-1] == "e_step")
print("RESULT", len(seen), len({file for file, _ in seen}), e_step)
"""

ROUND = """
import sys, threading
import numpy as np
src = sys.argv[1]
seen, on = [], [False]

def watch(frame, event, arg):
    code = frame.f_code
    if on[0] and event == "call" and code.co_filename.startswith(src) and code.co_flags & 1 and not code.co_name.startswith("<"):
        seen.append((code.co_filename, code.co_qualname))

import focusfl as ff
import torch
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
{imports}
fed = ff.data.rotated_digits(n=20) if "n" in ff.data.rotated_digits.__code__.co_varnames else ff.data.rotated_digits()
{body}
files = {{file for file, _ in seen}}
print("RESULT", len(set(seen)), len(files))
"""


def functions(src: Path) -> list[tuple[str, int]]:
    found = []
    for path in sorted(src.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((f"{path.relative_to(src)}:{node.name}", node.end_lineno - node.lineno + 1))
    return found


def profiled(script: str, src: Path, *arguments: str) -> list[int]:
    env = os.environ | {"PYTHONPATH": str(src.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, str(src), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if not lines:
        raise SystemExit(done.stderr[-2000:])
    return [int(word) for word in lines[0].split()[1:]]


def main() -> None:
    top = Path(__file__).resolve().parents[1]
    src = (Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else top / "src") / "focusfl"
    files = sorted(src.rglob("*.py"))
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    longest = max(sizes, key=lambda path: sizes[path])
    each = functions(src)
    name, length = max(each, key=lambda one: one[1])
    print(f"modules at the root of the package: {sum(path.parent == src for path in files)}")
    print(
        f"files {len(files)}, lines {sum(sizes.values())}, median {median(sizes.values()):.0f}, "
        f"longest {longest.relative_to(src)} {sizes[longest]}"
    )
    print(f"functions {len(each)}, median {median(n for _, n in each):.0f} lines, longest {name} {length}")
    with tempfile.TemporaryDirectory() as folder:
        count, places, e_step = profiled(COMPARE, src, str(Path(folder) / "out"))
    print(f"focusfl compare: {count} functions in {places} files; the first E step is number {e_step}")


if __name__ == "__main__":
    main()
