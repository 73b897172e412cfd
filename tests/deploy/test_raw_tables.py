"""Three SuperNodes with raw tables, each a process of its own: the numbers of one process that has all files.

The SuperLink and the nodes talk on loopback without TLS, so no proxy is needed; test_deployment.py has both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from helpers.deploy import ENV, SHORT_PAUSES, free_ports, is_listening, running, wait_until
from helpers.raw_tables import write_site

import focusfl as ff
from focusfl.deploy.flower_app import write_app
from focusfl.run.loop import run
from focusfl.run.setup import Setup

if not os.environ.get("CI"):
    pytest.importorskip("flwr")

BIN, NODES = Path(sys.executable).parent, 3
CONFIG = {
    "agents": NODES,
    "rounds": 1,
    "algorithm": "focus",
    "focus.M": 2,
    "focus.adapt": False,  # test_own_tables.py has it, in one process
    "label": "outcome",
    "best": "none",
}


def test_raw_tables_of_three_processes_give_the_numbers_of_a_folder(tmp_path: Path) -> None:
    """Identifiers, dates, categories, missing cells and targets of 1e5; nothing is set but the label."""
    ports, tables, out = free_ports(NODES), tmp_path / "tables", tmp_path / "out"
    tables.mkdir()
    for e in range(NODES):
        write_site(tables / f"{e}.csv", e, 60 + 9 * e, regression=True)
    home, link = tmp_path / "flower", f"127.0.0.1:{ports.superlink}"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{link}"\ninsecure = true\n'
    )
    app = write_app(tmp_path / "app", CONFIG | {"out": str(out), "wait": 300.0, "timeout": 300.0})
    env, log = SHORT_PAUSES | {"FLWR_HOME": str(home)}, tmp_path / "superlink.log"
    with ExitStack() as stack:
        server = [BIN / "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", ports.superlink]
        stack.enter_context(running([*server, "--disable-runtime-dependency-installation"], log, **env))
        for e in range(NODES):
            node = [BIN / "flower-supernode", "--insecure", "--superlink", link, "--host", "127.0.0.1"]
            node += ["--port", ports.supernode + e, "--node-config", f'agent={e} data="{tables / f"{e}.csv"}"']
            stack.enter_context(running(node, tmp_path / f"node-{e}.log", **env))
        wait_until(lambda: is_listening(ports.superlink), log)
        started = subprocess.run([BIN / "flwr", "run", app, "here"], env=ENV | env, capture_output=True, text=True)
        assert started.returncode == 0, started.stdout + started.stderr
        wait_until((out / "results.json").exists, log)
    fed = ff.data.folder(tables, label="outcome")
    *_, last = run(Setup.of(ff.Focus(M=2, adapt=False), fed, 1, engine="serial", bayes="none"))
    assert last.scores is not None
    assert json.loads((out / "results.json").read_text())[0]["loss"] == last.scores.loss.tolist()
    model = ff.load(out / "runs/focus-seed0/model")
    assert fed.inputs is not None and model.inputs.schema == fed.inputs.schema
    assert torch.equal(model.inputs.mean, fed.mean) and torch.equal(model.inputs.deviation, fed.deviation)
