"""A SuperLink behind its proxy on loopback, and clients that must be refused.

A run is active all the time: each round asks the registered nodes for a number, until a test stops it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from helpers.deploy import ENV, free_ports, running, serving, skip_without_nginx, status, wait_until

from focusfl.deploy import certificates, operator, registry
from focusfl.deploy.allowed_apps import folder_hash
from focusfl.deploy.setup import NODE_CALLS, init

skip_without_nginx()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's imports
TIMEOUT = 120  # seconds for one process; it takes a few seconds on a machine that is not busy

APP = """
[project]
name = "toy"
version = "0.1.0"
description = "Asks for numbers"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "focusfl"
[tool.flwr.app.components]
serverapp = "toy:server"
clientapp = "toy:client"
[tool.flwr.app.config]
folder = ""
"""

TOY = """
import json
import os
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.train()
def answer(message, context):
    number = 100 * context.node_config["agent"] + message.content["ask"]["t"]
    return Message(RecordDict({"answer": MetricRecord({"number": number})}), reply_to=message)

@server.main()
def main(grid, context):
    folder, rows = Path(context.run_config["folder"]), []
    while len(list(grid.get_node_ids())) < 2:
        time.sleep(0.5)
    while not (folder / "stop").exists() and len(rows) < 200:
        ask = RecordDict({"ask": ConfigRecord({"t": len(rows)})})
        asked = [Message(ask, dst_node_id=i, message_type="train") for i in grid.get_node_ids()]
        replies = grid.send_and_receive(asked, timeout=60)
        rows.append([None if r.has_error() else r.content["answer"]["number"] for r in replies])
        (folder / "draft").write_text(json.dumps(rows))
        os.replace(folder / "draft", folder / "rows.json")
        time.sleep(1)
    (folder / "done").touch()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """Agents 0 and 1 are registered and participate in a run; agent 2 has a key that is not registered."""
    out = tmp_path_factory.mktemp("deployment")
    folder, other, app, ports = out / "site", out / "other", out / "app", free_ports(8)
    init(folder, 3, ports=ports)
    init(other, 1, ports=ports)  # another deployment, with the same addresses
    app.mkdir()
    (app / "pyproject.toml").write_text(APP)
    (app / "toy.py").write_text(TOY)
    (folder / "operator/nodes/agent-2.pub").unlink()
    for path in (*folder.glob("nodes/*"), *other.glob("nodes/*")):
        (path / "data").mkdir()
    (folder / "nodes/agent-0/allowed-apps").write_text(folder_hash(app))  # agent 0 has a list, agent 1 has none
    with ExitStack() as stack:
        stack.enter_context(serving(folder, ports))
        assert [node.status for node in registry.register(folder)] == ["registered"] * 2
        nodes = [
            stack.enter_context(running([folder / f"nodes/agent-{e}/start-supernode.sh"], out / f"node{e}.log"))
            for e in (0, 1)
        ]
        start = operator.flwr_command(folder, "run", str(app), "focusfl", "--run-config", f'folder="{out}"')
        done = subprocess.run(start, env=ENV, timeout=TIMEOUT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        wait_until((out / "rows.json").exists, folder / "superlink.log")
        yield SimpleNamespace(out=out, folder=folder, other=other, app=app, ports=ports, nodes=nodes)


@pytest.fixture(scope="module")
def intruders(site: SimpleNamespace) -> dict[str, tuple[int, str]]:
    """Run all intruders at the same time and return their exit codes and outputs."""
    ca, here, port = site.folder / "server/ca.pem", f"localhost:{site.ports.node}", site.ports.supernode
    bare = ["flower-supernode", "--superlink", here, "--isolation", "process", "--port"]
    key, home = site.folder / "operator/nodes/agent-0.pub", site.out / "home"
    home.mkdir()
    line = f'[superlink.x]\naddress = "localhost:{site.ports.operator}"\nroot-certificates = "{ca}"\n'
    (home / "config.toml").write_text(line)
    flwr = ["env", f"FLWR_HOME={home}", "flwr"]
    commands: dict[str, list[object]] = {
        "unregistered key": [site.folder / "nodes/agent-2/start-supernode.sh"],
        "another authority": ["env", f"PORT={port + 3}", site.other / "nodes/agent-0/start-supernode.sh"],
        "plain text": [*bare, port + 4, "--insecure"],
        "no key": [*bare, port + 5, "--root-certificates", ca],
        "no certificate, registers": [*flwr, "supernode", "register", key, "x"],
        "no certificate, runs": [*flwr, "run", site.app, "x"],
    }
    found = {}
    with ExitStack() as stack:
        logs = {name: site.out / f"{name}.log".replace(" ", "-") for name in commands}
        tried = {name: stack.enter_context(running(command, logs[name])) for name, command in commands.items()}
        for name, process in tried.items():
            found[name] = (process.wait(TIMEOUT), logs[name].read_text(errors="replace"))
    return found


REFUSED = {
    "unregistered key": "Failed to initialize the connection",
    "another authority": "CERTIFICATE_VERIFY_FAILED",
    "plain text": "400 Bad Request",
    "no key": "404 Not Found",
    "no certificate, registers": "400 Bad Request",
    "no certificate, runs": "400 Bad Request",
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_intruder_is_refused(intruders: dict[str, tuple[int, str]], name: str) -> None:
    code, output = intruders[name]
    assert code != 0
    assert REFUSED[name] in " ".join(output.replace("│", " ").split())


def test_only_a_listed_operator_reaches_the_control_api(site: SimpleNamespace) -> None:
    port, folder, runs = site.ports.operator, site.folder, "/v1/control/list-runs"
    ca_key = load_pem_private_key((folder / "authority/ca.key").read_bytes(), None)
    ca = certificates.x509.load_pem_x509_certificate((folder / "server/ca.pem").read_bytes())
    key = certificates.new_tls_key()
    unlisted = certificates.operator_certificate(key.public_key(), ca, ca_key, 1)
    (site.out / "unlisted.pem").write_bytes(unlisted.public_bytes(Encoding.PEM))
    (site.out / "unlisted.key").write_bytes(certificates.private_pem(key))
    assert status(port, folder, runs, folder / "operator/operator") == 200
    assert status(port, folder, runs) == 400
    assert status(port, folder, runs, site.other / "operator/operator") == 400
    assert status(port, folder, runs, folder / "server/server") == 400  # signed, but not for this use
    assert status(port, folder, runs, site.out / "unlisted") == 403


def test_the_proxy_forwards_the_listed_calls_and_nothing_else(site: SimpleNamespace) -> None:
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    known = {path for _, path in PROTOBUF_REQUEST_TYPES} | {
        "/health",
        "/docs",
        "/openapi.json",
        "/v1/runtime/responses",
    }
    nodes = {f"/v1/fleet/{call}" for call in NODE_CALLS}
    assert nodes < known
    for path in known:
        expected = 401 if path in nodes else 404  # not signed, or not forwarded
        assert status(site.ports.node, site.folder, path) == expected, path
        if not path.startswith("/v1/control/"):
            assert status(site.ports.operator, site.folder, path, site.folder / "operator/operator") == 404, path


@pytest.mark.parametrize(
    "path",
    [
        "/v1/fleet/../control/list-federations",
        "/v1/fleet/%2e%2e/control/list-federations",
        "/v1/fleet%2f..%2fcontrol/list-federations",
        "/v1/control/list-federations/../../fleet/get-run",
        "/v1/control/list-federations%2f..%2f..%2ffleet/get-run",
        "/v1/control/list-federations?/v1/fleet/get-run",
        "/v1/control/list-federations%00/../../fleet/get-run",
        "//v1//control//list-federations",
        "/V1/control/list-federations",
        "http://localhost/v1/control/list-federations",
    ],
)
def test_no_spelling_of_a_path_leads_from_the_nodes_port_to_the_control_api(
    site: SimpleNamespace, path: str
) -> None:
    assert status(site.ports.node, site.folder, path) in (400, 401, 404)
    assert "list-federations" not in (site.folder / "superlink.log").read_text()


def test_plain_text_is_refused_and_the_superlink_listens_on_loopback_only(site: SimpleNamespace) -> None:
    for port in (site.ports.node, site.ports.operator):
        assert status(port, site.folder, "/v1/fleet/get-run", plain=True) == 400
    assert status(site.ports.superlink, site.folder, "/v1/control/list-runs", plain=True) is None
    bound = [
        line.split()[1] for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()
    ]
    assert [one for one in bound if one.endswith(f":{site.ports.superlink:04X}")]
    assert all(one.startswith("0100007F:") for one in bound if one.endswith(f":{site.ports.superlink:04X}"))


def test_an_app_that_is_not_on_a_nodes_list_does_not_run_there(site: SimpleNamespace) -> None:
    """The operator submits another app; where it is loaded, it leaves a mark."""
    app, out = site.out / "unlisted", site.out / "unlisted-out"
    shutil.copytree(site.app, app)
    out.mkdir()
    (app / "toy.py").write_text(TOY + '(Path(os.environ["FLWR_HOME"]) / "loaded").touch()\n')
    start = operator.flwr_command(site.folder, "run", str(app), "focusfl", "--run-config", f'folder="{out}"')
    done = subprocess.run(start, env=ENV, timeout=TIMEOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until((out / "rows.json").exists, site.folder / "superlink.log")
    (out / "stop").touch()
    first = json.loads((out / "rows.json").read_text())[0]
    assert sorted(first, key=str) == [100, None]  # agent 1 answers, agent 0 refuses
    loaded = {e: (site.folder / f"nodes/agent-{e}/flower/loaded").exists() for e in (0, 1)}
    assert loaded == {0: False, 1: True}
    assert folder_hash(app) in (site.out / "node0.log").read_text()


def test_the_run_was_not_disturbed(site: SimpleNamespace, intruders: dict[str, tuple[int, str]]) -> None:
    before = len(json.loads((site.out / "rows.json").read_text()))
    wait_until(
        lambda: len(json.loads((site.out / "rows.json").read_text())) > before, site.folder / "superlink.log"
    )
    (site.out / "stop").touch()
    wait_until((site.out / "done").exists, site.folder / "superlink.log")
    rows = json.loads((site.out / "rows.json").read_text())
    assert [sorted(row) for row in rows] == [[t, 100 + t] for t in range(len(rows))]
    assert [node.status for node in registry.nodes(site.folder)] == ["online", "online"]
    assert [process.poll() for process in site.nodes] == [None, None]


def test_a_revoked_node_is_refused_and_stops(site: SimpleNamespace) -> None:
    registry.revoke(site.folder, "agent-1")
    assert site.nodes[1].wait(TIMEOUT) is not None
    assert [node.name for node in registry.nodes(site.folder)] == ["agent-0"]
