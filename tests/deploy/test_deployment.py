"""Training in a deployment on loopback, as `focusfl deploy init` writes it: TLS, node keys, proxy, own data."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.deploy import (
    ENV,
    SHORT_PAUSES,
    Ports,
    free_ports,
    running,
    serving,
    skip_without_nginx,
    wait_until,
)
from safetensors.torch import load_file

import focusfl as ff
from focusfl.core.tree import flatten, take
from focusfl.deploy import registry, setup
from focusfl.engines.one_agent import predictor
from focusfl.run.loop import run
from focusfl.run.setup import Setup

skip_without_nginx()

AGENTS, ROUNDS = 3, 3
TRAIN = ff.Train(lr=0.3, steps=4, batch=16)
SETTINGS = ["agents=3", f"rounds={ROUNDS}", "algorithm=focus", "focus.M=2", "model=mlp:64,16,10", "classes=10"]
SETTINGS += ["train.lr=0.3", "train.steps=4", "train.batch=16", "eval-every=3", "best=none", "timeout=100"]
SETTINGS += ["train.optimiser=sgd", "validation=0"]


def federation() -> ff.Federation:
    """Rotated digits: two agents upright, one turned."""
    whole = ff.data.rotated_digits(seed=0)
    chosen = [0, 1, whole.E - 1]
    training = [tuple(whole.train(e)) for e in chosen]
    testing = [tuple(whole.test(e)) for e in chosen]
    return ff.Federation.from_agents(training, test=testing, classes=10, model=lambda: ff.models.mlp(64, 16, 10))


def focusfl(*words: str) -> None:
    command = [str(Path(sys.executable).parent / "focusfl"), *words]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr


class Site:
    """A running deployment."""

    def __init__(self, folder: Path, ports: Ports, stack: ExitStack) -> None:
        self.folder, self.ports, self.stack = folder, ports, stack
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        fed = federation()
        for e in range(AGENTS):
            data = folder / f"data-{e}"
            data.mkdir()
            (x, y), (test_x, test_y) = fed.train(e), fed.test(e)
            np.savez(data / "data.npz", x_train=x, y_train=y, x_test=test_x, y_test=test_y)

    def log(self, e: int) -> Path:
        return self.folder / f"node-{e}.log"

    def start(self, e: int) -> None:
        command = [self.folder / f"nodes/agent-{e}/start-supernode.sh", self.folder / f"data-{e}"]
        # agent 2 is killed later: Flower takes it for gone after two heartbeats, else after a minute
        heartbeat = {"FOCUSFL_TEST_HEARTBEAT": "10"} if e == 2 else {}
        self.nodes[e] = self.stack.enter_context(running(command, self.log(e), **SHORT_PAUSES, **heartbeat))

    def wait_online(self, number: int) -> None:
        """Wait until `number` nodes are online."""

        def ready() -> bool:
            return sum(node.status == "online" for node in registry.nodes(self.folder)) == number

        wait_until(ready, self.folder / "superlink.log")

    def train(self, name: str, *more: str) -> Path:
        """Submit a run and return the folder of its results at the server."""
        out = self.folder / "results" / name
        sets = [word for change in (*SETTINGS, f"out={out}", *more) for word in ("--set", change)]
        focusfl("deploy", "run", str(self.folder), *sets, "--no-stream")
        return out

    def training(self, number: int) -> bool:
        """Whether every node has received the whole of so many messages to train."""
        received = [self.log(e).read_text().split("Receiving: train message") for e in range(AGENTS)]
        return all(len(parts) > number and "Received successfully" in parts[number] for parts in received)

    def history(self, out: Path, seed: int = 0) -> list[dict[str, Any]]:
        path = out / "runs" / f"focus-seed{seed}" / "history.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site") / "here"
    ports = free_ports(AGENTS)
    setup.init(folder, AGENTS, ["127.0.0.1"], bind="127.0.0.1", ports=ports)
    with ExitStack() as stack:
        stack.enter_context(serving(folder, ports, **SHORT_PAUSES))
        registry.register(folder)
        here = Site(folder, ports, stack)
        for e in range(AGENTS):
            here.start(e)
        here.wait_online(AGENTS)
        yield here
    for e in range(AGENTS):  # a ClientApp whose SuperNode was killed would wait for it forever
        for pid in processes(f"flwr-clientapp.*127.0.0.1:{ports.supernode + e} "):
            os.kill(pid, signal.SIGKILL)


def serial(rounds: int, seed: int = 0) -> Any:
    made = Setup.of(ff.Focus(M=2), federation(), rounds, train=TRAIN, seed=seed, engine="serial")
    *_, last = run(made)
    return last


def same(out: Path, wanted: Any, seed: int = 0) -> None:
    """Check that the server's weights and every agent's loss are those of a run in one process."""
    kept = load_file(out / "runs" / f"focus-seed{seed}" / "checkpoint.safetensors")
    for k, v in flatten({"server": wanted.server}).items():
        torch.testing.assert_close(kept[k], v, rtol=0, atol=1e-5)
    row = json.loads((out / "results.json").read_text())[0]
    torch.testing.assert_close(torch.tensor(row["loss"]), wanted.scores.loss, rtol=0, atol=1e-5)


def server_apps(site: Site) -> list[int]:
    """Return the process ids of this deployment's ServerApps: they call its SuperLink."""
    return processes(f"flwr-serverapp.*127.0.0.1:{site.ports.superlink}")


def processes(pattern: str) -> list[int]:
    return [int(pid) for pid in subprocess.run(["pgrep", "-f", pattern], capture_output=True).stdout.split()]


def test_a_run_that_was_killed_and_resumed_equals_the_serial_engine(site: Site) -> None:
    """The ServerApp is killed in the second of three rounds; the resumed run equals a run in one process."""
    out = site.train("whole", "wait=100")
    log = site.folder / "superlink.log"
    # before nodes have the whole message, they would wait for the rest until Flower takes the ServerApp for gone
    wait_until(lambda: len(site.history(out)) >= 1 and site.training(2), log)
    killed = server_apps(site)
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    done = len(site.history(out))
    assert 1 <= done < ROUNDS
    site.train("whole", "wait=100", "resume=true")
    wait_until(lambda: (out / "results.json").exists(), log)
    assert [row["round"] for row in site.history(out)] == [1, 2, 3]
    same(out, serial(ROUNDS))
    focusfl("report", str(out))
    text = (out / "report.md").read_text()
    assert "3 rounds" in text and "3 agents" in text
    for e in range(AGENTS):  # as they are now: later runs replace them
        shutil.copytree(site.folder / f"nodes/agent-{e}/keep/model", site.folder / f"kept-{e}")
    shutil.copytree(out / "runs/focus-seed0/model", site.folder / "kept-server")


@pytest.mark.skipif(not os.environ.get("FOCUSFL_LONG_TESTS"), reason="a minute of its own: FOCUSFL_LONG_TESTS=1")
def test_a_secure_round_with_certified_nodes_is_the_plain_one(site: Site) -> None:
    """One round over real processes, in which the nodes know each other by the deployment's certificates."""
    options = "rounds=1", "eval-every=1", "secure=true", "focus.init=tied", "seed=2", "wait=100", "minimum=3"
    out = site.train("secure", *options)
    wait_until(lambda: (out / "results.json").exists(), site.folder / "superlink.log")
    assert "dropped" not in site.history(out, 2)[0]
    made = Setup.of(ff.Focus(M=2, init="tied"), federation(), 1, train=TRAIN, seed=2, engine="serial")
    *_, last = run(made)
    same(out, last, 2)


def test_a_killed_node_is_dropped_and_participates_again_after_a_restart(site: Site) -> None:
    """Agent 2 is killed in mid-round: the others continue. Once restarted, it participates again."""
    out = site.train("kill", "rounds=40", "eval-every=40", "minimum=2", "timeout=60", "seed=1", "wait=5")
    log = site.folder / "superlink.log"
    wait_until(lambda: len(site.history(out, 1)) >= 1, log)
    kill_tree(site.nodes[2].pid)
    wait_until(lambda: any("2" in row.get("dropped", {}) for row in site.history(out, 1)), log)
    missing = next(row for row in site.history(out, 1) if "dropped" in row)
    assert set(missing["dropped"]) == {"2"}
    gone = missing["round"]

    def back() -> bool:
        if (
            site.nodes[2].poll() is not None
        ):  # Flower refuses the new process until it considers the old one offline
            site.start(2)
        return any(row["round"] > gone and "dropped" not in row for row in site.history(out, 1))

    wait_until(back, log)


def kill_tree(pid: int) -> None:
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
    os.kill(pid, signal.SIGKILL)
    for child in children:
        kill_tree(int(child))


def test_nodes_predict_from_their_own_folders_when_the_server_has_stopped(site: Site) -> None:
    """The first test's run left a predictor at each node; it gives what a run in one process predicts."""
    site.stack.close()
    for pid in server_apps(site):  # of the run before, which waits for its SuperLink
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", site.ports.superlink))
    fed, wanted = federation(), serial(ROUNDS)
    made = Setup.of(ff.Focus(M=2), fed, ROUNDS, train=TRAIN, engine="serial")
    for e in range(AGENTS):
        x, out = fed.test(e).x, site.folder / f"predictions-{e}.csv"
        np.savez(site.folder / f"new-{e}.npz", x=x)
        focusfl("predict", str(site.folder / f"kept-{e}"), str(site.folder / f"new-{e}.npz"), "--out", str(out))
        rows = [line.split(",")[1:] for line in out.read_text().splitlines()[1:]]
        view, state = made.algorithm.downlink(wanted.server, torch.tensor(e)), take(wanted.states, e)
        expected = made.algorithm.predict(view, state, predictor(made.task, x))
        torch.testing.assert_close(
            torch.tensor([[float(v) for v in row] for row in rows]), expected, rtol=0, atol=2e-5
        )
    turned = fed.train(AGENTS - 1)
    newcomer = ff.load(site.folder / "kept-server").assign(*turned)
    assert float(newcomer.pi.sum()) == pytest.approx(1) and newcomer.predict(x).shape == (len(x), 10)
