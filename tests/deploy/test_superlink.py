"""The server of a deployment when a node sends too much, its executor dies, a run fails, or its log grows."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.deploy import SHORT_PAUSES, free_ports, running, serving, skip_without_nginx, status, wait_until

from focusfl.deploy import operator, registry, runs
from focusfl.deploy.setup import init
from focusfl.util import processes

skip_without_nginx()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's imports

APP = """
[project]
name = "large"
version = "0.1.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "focusfl"
[tool.flwr.app.components]
serverapp = "large:server"
clientapp = "large:client"
[tool.flwr.app.config]
megabytes = {megabytes}
"""

LARGE = """
import time

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.train()
def answer(message, context):
    size = context.run_config["megabytes"] * 1_000_000
    data = np.frombuffer(np.random.default_rng(0).bytes(size), np.uint8)
    return Message(RecordDict({"extra": ArrayRecord({"data": Array(data)})}), reply_to=message)

@server.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.2)
    ask = Message(RecordDict({"ask": ConfigRecord({})}), dst_node_id=nodes[0], message_type="train")
    (reply,) = grid.send_and_receive([ask], timeout=600)
    if reply.has_error():
        raise ValueError(reply.error.reason)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A deployment whose only agent runs."""
    out = tmp_path_factory.mktemp("superlink")
    folder, ports = out / "site", free_ports(1)
    init(folder, 1, ports=ports)
    (folder / "nodes/agent-0/data").mkdir()
    with ExitStack() as stack:
        stack.enter_context(serving(folder, ports, **SHORT_PAUSES))
        registry.register(folder)
        node = [folder / "nodes/agent-0/start-supernode.sh"]
        stack.enter_context(running(node, out / "node.log", **SHORT_PAUSES))
        yield SimpleNamespace(folder=folder, out=out, ports=ports, log=folder / "superlink.log")


def app(site: SimpleNamespace, megabytes: int) -> Path:
    folder: Path = site.out / f"large-{megabytes}"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(APP.format(megabytes=megabytes))
    (folder / "large.py").write_text(LARGE)
    return folder


def executor(site: SimpleNamespace) -> processes.Process:
    """The process that starts runs, of this SuperLink."""
    address = f"127.0.0.1:{site.ports.superlink}"
    mine = [p for p in processes.every() if any("superexec" in word for word in p.command) and address in p.command]
    return mine[0]


def test_a_reply_that_is_much_larger_than_its_message_is_refused(site: SimpleNamespace) -> None:
    """40 MB in reply to an empty message; 1 MB is accepted. The refused bytes do not reach the database."""
    runs.follow(site.folder, runs.submit(site.folder, app(site, 1)))
    run = runs.submit(site.folder, app(site, 40))
    wait_until(lambda: f"run {run}: the reply of node" in site.log.read_text(), site.log)
    stored = sum(path.stat().st_size for path in (site.folder / "server/flower").glob("superlink.db*"))
    assert stored < 40e6
    with registry.control_client(operator.operator_folder(site.folder)) as client:
        from flwr.proto.control_pb2 import StopRunRequest

        client.StopRun(StopRunRequest(run_id=run))
    with pytest.raises(runs.RunFailed, match="stopped"):
        runs.follow(site.folder, run)


def test_a_run_that_the_executor_does_not_start_or_that_fails_is_an_error(
    site: SimpleNamespace, focusfl: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor hangs: the command says so. Killed, it is started again, and the run is tried and fails."""
    stuck = executor(site)
    os.kill(stuck.pid, signal.SIGSTOP)
    monkeypatch.setattr(runs, "START_TIMEOUT", 1.0)
    settings = ["agents=2", "rounds=1", "model=mlp:2,2", "classes=2", "out=/proc/none"]
    words = [word for setting in settings for word in ("--set", setting)]
    code, _, err = focusfl("deploy", "run", site.folder, *words)
    assert code == 1 and "pending" in err and "executor" in err
    os.kill(stuck.pid, signal.SIGKILL)
    wait_until(lambda: "executor ended" in site.log.read_text(), site.log)
    run = next(int(word) for word in err.split() if word.isdigit())
    wait_until(lambda: runs.wait_while(site.folder, run, set(), 0).status == "finished", site.log)
    with pytest.raises(runs.RunFailed, match="failed"):
        runs.follow(site.folder, run)
    assert executor(site).pid != stuck.pid


def test_the_proxys_log_does_not_grow_without_end(tmp_path: Path) -> None:
    """Moved at every look, as the limit is 0: three older files are kept, and nginx writes on."""
    folder, ports = tmp_path / "site", free_ports(1)
    init(folder, 1, ports=ports)
    logs = [folder / f"server/run/access.log{suffix}" for suffix in ("", ".1", ".2", ".3", ".4")]
    with running([folder / "server/start-proxy.sh", "0"], tmp_path / "proxy.log", CHECK_SECONDS="0.1") as proxy:

        def call() -> bool:
            return status(ports.node, folder) == 404 and logs[3].exists()

        wait_until(call, tmp_path / "proxy.log")
        assert proxy.poll() is None
    assert not logs[4].exists()
