"""Measure the shape of the source: how far a reader has to walk, and what stands more than once.

Run: python tools/shape.py                 this checkout
     python tools/shape.py ../older/src    another one, for comparison

It runs `focusfl compare` on the digits, and one round of FOCUS over Flower's messages, under a profiler, and counts
the distinct functions of the package that are entered and the files they are in. Class bodies, lambdas and
comprehensions do not count. The rest is read from the source.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

PROFILER = """
import sys
from pathlib import Path
src, out = sys.argv[1] + "/", sys.argv[2]
seen, on = {}, [False]

def watch(frame, event, arg):
    code = frame.f_code
    if on[0] and event == "call" and code.co_filename.startswith(src):
        if code.co_flags & 1 and not code.co_name.startswith("<"):
            seen.setdefault((code.co_filename, code.co_qualname), len(seen) + 1)

def result():
    sys.setprofile(None)
    e_step = next((n for (_, name), n in seen.items() if name.split(".")[-1] == "e_step"), 0)
    print("RESULT", len(seen), len({file for file, _ in seen}), e_step)
    if "--list" in sys.argv:
        for (file, name), n in seen.items():
            print(n, file.removeprefix(src), name, file=sys.stderr)
"""

COMPARE = (
    PROFILER
    + """
import focusfl.cli
listed = "--list" in sys.argv
sys.argv = ["focusfl", "compare", "--seeds", "0", "--rounds", "6", "--out", out] + ["--list"] * listed
on[0] = True
sys.setprofile(watch)
try:
    if listed:
        sys.argv.remove("--list")
    focusfl.cli.main()
except SystemExit:
    pass
if listed:
    sys.argv.append("--list")
result()
"""
)

FLOWER_ROUND = (
    PROFILER
    + """
import numpy as np
import flwr.app.message.message as flower_message
from flwr.app import Context, Message, RecordDict
import focusfl as ff

class Sender:
    run_id = node_id = task_id = 1

flower_message.TaskIdentity = Sender
fed = ff.data.synthetic(E=3, n=20)
algorithm, train = ff.Focus(M=2, warmup=1), ff.Train(steps=2)

class Nodes:
    def __init__(self, app):
        self.app = app
        self.contexts = {100 + e: Context(1, 100 + e, {"agent": e}, RecordDict(), {}) for e in range(3)}
        self.sent = 0
    def get_node_ids(self):
        return list(self.contexts)
    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            self.sent += 1
            message.metadata.__dict__["_message_id"] = str(self.sent)
            replies.append(self.app(message, self.contexts[message.metadata.dst_node_id]))
        return replies

try:
    from focusfl.flower.deployment import Deployment, DeploymentEngine
    from focusfl.flower.protocol.node import Job, client, number
    from focusfl.run.settings import Settings
    def job(context):
        e = number(context)
        return Job(algorithm, fed.recipe.model, Settings(train=train), fed.train(e), fed.test(e), None)
    task = Deployment.of(algorithm, fed.recipe.model, 3, None, rounds=3, train=train, wait=0)
    engine = DeploymentEngine(task, Nodes(client(job)), task.key("00"), lambda line: None)
    server = algorithm.start(task.networks, 3)
    engine.gather(server, 0)
    def one_round(t):
        return engine.round(algorithm, server, {}, t, np.arange(3))
except ImportError:  # release 0.1
    from focusfl.engines.flower.node import Job, client, number
    from focusfl.flower import Run
    from focusfl.flower.server import _round, exchange
    def job(context):
        e = number(context)
        return Job(algorithm, fed.recipe.model, train, fed.train(e), fed.test(e), None)
    task = Run(algorithm, fed.recipe.model, 3, 3, None, train, wait=0)
    talk = exchange(Nodes(client(job)), task, lambda line: None)
    server = algorithm.start(task.networks, 3)
    talk.roll.gather(0, algorithm.enroll(server), begin=True, wait=0)
    def one_round(t):
        return _round(talk, task, server, t)
import torch
for t in range(2):
    on[0] = t == 1
    sys.setprofile(watch)
    replies = one_round(t)
    server = algorithm.aggregate(server, replies.add, replies.each, torch.from_numpy(replies.cohort))
    sys.setprofile(None)
result()
"""
)


def profiled(script: str, src: Path, out: str) -> list[int]:
    """Run a script with this source; what it printed behind RESULT."""
    env = os.environ | {"PYTHONPATH": str(src.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, str(src), out, *["--list"] * ("--list" in sys.argv)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if not lines:
        raise SystemExit(done.stderr[-2000:])
    if "--list" in sys.argv:
        print(done.stderr)
    return [int(word) for word in lines[0].split()[1:]]


def functions(src: Path) -> dict[str, int]:
    """Lines of every function, by file and name."""
    lengths = {}
    for path in sorted(src.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path.relative_to(src)}:{node.name}"
                lengths[name] = (node.end_lineno or node.lineno) - node.lineno + 1
    return lengths


def matches(src: Path, pattern: str) -> list[str]:
    """The places, FILE:LINE, where a pattern stands."""
    found = []
    for path in sorted(src.rglob("*.py")):
        for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{path.relative_to(src)}:{n}")
    return found


WHAT = {
    "loops over the rounds": r"for t in range\((begun|rounds_done), |def (configure|aggregate)_train\b",
    "evaluations (calls of task.score)": r"task\.score\(",
    "writers of result.json": r"""write_json\((done|.*"result\.json")""",
    "definitions of Row as a plain dict": r"^\s*Row = (dict\[str, Any\]|keeping\.Row)",
    "definitions of the option `fraction`": r"^\s*fraction: float = |\"fraction\": 1\.0",
    "signatures of sgd with all its options": r"^\s+weights: Tensor \| None = None,$|^class SgdOptions",
    "isinstance of a method outside algorithms": r"isinstance\(algorithm, [A-Z]\w+\)",
    "tests for a key of FOCUS's state": r"\"(live|turns|home|sketch)\" (not )?in (server|each)",
}


def main() -> None:
    top = Path(__file__).resolve().parents[1]
    named = [word for word in sys.argv[1:] if not word.startswith("-")]
    src = (Path(named[0]).resolve() if named else top / "src") / "focusfl"
    files = sorted(src.rglob("*.py"))
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    longest, lengths = max(sizes, key=lambda path: sizes[path]), functions(src)
    longest_function = max(lengths, key=lambda name: lengths[name])
    print(f"modules at the root of the package: {sum(path.parent == src for path in files)}")
    print(f"files {len(files)}, lines {sum(sizes.values())}, median {median(sizes.values()):.0f}", end=", ")
    print(f"longest {longest.relative_to(src)} {sizes[longest]}")
    print(f"functions {len(lengths)}, median {median(lengths.values()):.0f} lines", end=", ")
    print(f"longest {longest_function} {lengths[longest_function]}")
    focus = next(path for path in files if path.name == "focus.py")
    print(f"FOCUS's own file: {focus.relative_to(src)}, {sizes[focus]} lines")
    with tempfile.TemporaryDirectory() as folder:
        count, places, e_step = profiled(COMPARE, src, str(Path(folder) / "out"))
        print(f"focusfl compare: {count} functions in {places} files; the first E step is number {e_step}")
        count, places, e_step = profiled(FLOWER_ROUND, src, folder)
        print(f"a round over Flower: {count} functions in {places} files; the first E step is number {e_step}")
    for what, pattern in WHAT.items():
        found = matches(src, pattern)
        print(f"{what}: {len(found)}{' (' * bool(found)}{', '.join(found[:8])}{')' * bool(found)}")


if __name__ == "__main__":
    main()
