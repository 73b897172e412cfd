"""A simulation as others see it: its ports, its files, how it is stopped and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from focusfl.run import checkpoint, history
from focusfl.util import files, processes

if not os.environ.get("CI"):
    pytest.importorskip("flwr")

import grpc
from helpers.ports import descendants, from_outside, listening, open_port

from focusfl.flower import running, simulation
from focusfl.flower.protocol import roster

COMPARE = ["compare", "--data", "synthetic", "--algorithms", "fedavg", "--seeds", "0", "--engine", "flower"]
# a call of Ray's that needs no arguments, for each of the services that listen
CALLS = (
    "NodeInfoGcsService/GetClusterId",
    "NodeManagerService/GetNodeStats",
    "CoreWorkerService/GetCoreWorkerStats",
)

linux = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's tables of ports")


def wait_until(ready: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A run of many rounds, which has completed the first."""
    out = tmp_path_factory.mktemp("simulation")
    env = os.environ | {"XDG_STATE_HOME": str(out / "state")}
    command = [sys.executable, "-c", "from focusfl.cli.app import main; main()", *COMPARE]
    log = (out / "log").open("wb")
    process = subprocess.Popen(
        [*command, "--rounds", "9000", "--out", "runs"], cwd=out, env=env, stdout=log, stderr=log
    )
    folder = out / "runs/runs/fedavg-seed0"
    try:
        wait_until(lambda: process.poll() is not None or bool(history.read(folder)))
        assert process.poll() is None, (out / "log").read_text()
        ports = listening(descendants(process.pid))
        yield SimpleNamespace(process=process, out=out, folder=folder, ports=ports)
    finally:
        process.kill()
        process.wait()
        log.close()


@linux
def test_every_port_of_a_simulation_is_on_loopback(run: SimpleNamespace) -> None:
    assert len(run.ports) >= 5  # Ray's head, node, object store, agent and workers
    assert [address for address, _ in run.ports if not address.is_loopback] == []


@linux
def test_another_machine_reaches_no_port_of_a_simulation(run: SimpleNamespace) -> None:
    with from_outside() as connect, open_port() as comparison:
        found = connect([comparison, *(port for _, port in run.ports)])
    assert found.pop(comparison) == "open"
    assert set(found.values()) == {"ConnectionRefusedError"}


@linux
def test_without_its_token_ray_does_nothing(run: SimpleNamespace) -> None:
    """Every service refuses a call, of whatever name; with the token, Ray's head answers."""
    token = next(filter(None, (token_of(pid) for pid in descendants(run.process.pid))))
    refused, answered = [], []
    for _, port in run.ports:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            codes = {call: status(channel, call) for call in CALLS}
            known = {call: status(channel, call, token) for call in CALLS}
        if grpc.StatusCode.UNAVAILABLE in codes.values():  # it speaks HTTP 1
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/get_runtime_envs_info", b"", timeout=5)
        else:
            assert set(codes.values()) <= {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED}, codes
            refused += [call for call, code in codes.items() if code is grpc.StatusCode.UNAUTHENTICATED]
            answered += [call for call, code in known.items() if code is grpc.StatusCode.OK]
    assert set(refused) == set(CALLS)
    assert CALLS[0] in answered


def token_of(pid: int) -> str | None:
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return next((v.partition("=")[2] for v in variables if v.startswith("RAY_AUTH_TOKEN=")), None)


def status(channel: grpc.Channel, call: str, token: str | None = None) -> grpc.StatusCode:
    headers = [("authorization", f"Bearer {token}")] if token else None
    method = channel.unary_unary(f"/ray.rpc.{call}")
    try:
        method(b"", timeout=5, metadata=headers)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_a_simulation_is_listed_and_stopped_by_its_id(
    run: SimpleNamespace, focusfl: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends like Ctrl-C on the other engines: after a round, with a checkpoint; nothing of it is left."""
    monkeypatch.setenv("XDG_STATE_HOME", str(run.out / "state"))
    monkeypatch.setenv("FLWR_HOME", str(run.out))  # no other SuperLink is stopped
    records = list((run.out / "state/focusfl/simulations").glob("*.json"))
    folders = [Path(folder) for record in records for folder in files.read_json(record)["folders"]]
    assert folders and all(folder.stat().st_mode & 0o077 == 0 for folder in folders)
    assert focusfl("flower", "list")[1].split()[0] == str(run.process.pid)
    assert focusfl("flower", "stop", os.getpid())[0] == 2  # this process is no simulation
    code, printed, _ = focusfl("flower", "stop")
    assert code == 0 and str(run.process.pid) in printed
    assert run.process.wait(60) == 130
    log = (run.out / "log").read_text()
    assert "--resume" in log and "SIGTERM" not in log and "Traceback" not in log
    assert (run.folder / checkpoint.NAME).exists()
    assert [folder for folder in folders if folder.exists()] == []
    assert focusfl("flower", "list") == (0, "", "")


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Another process, recorded as a simulation with a folder of agents' data."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    process = subprocess.Popen(["sleep", "600"])
    found = processes.find(process.pid)
    assert found is not None
    data = tmp_path / f"{running.PREFIX}data"
    data.mkdir()
    (data / "0.safetensors").touch()
    record = running.Record(processes.machine(), found.pid, found.started, [str(data)])
    path = tmp_path / "state/focusfl/simulations/1.json"
    path.parent.mkdir(parents=True)
    files.write_json(path, asdict(record))
    yield SimpleNamespace(process=process, data=data, record=record, path=path)
    process.kill()
    process.wait()


def test_the_next_simulation_deletes_the_data_of_a_killed_one(recorded: SimpleNamespace) -> None:
    first = running.Workspace()
    assert recorded.data.exists()
    recorded.process.kill()
    recorded.process.wait()
    second = running.Workspace()
    assert not recorded.data.exists() and not recorded.path.exists()
    assert first.data.exists()  # its process lives
    for workspace in (first, second):
        workspace.remove()
    assert not first.data.exists() and not list(recorded.path.parent.iterdir())


def test_a_process_that_has_taken_over_the_id_is_not_stopped(recorded: SimpleNamespace) -> None:
    files.write_json(recorded.path, asdict(replace(recorded.record, started="earlier")))
    assert running.simulations() == []
    assert running.stop([], wait=0) == []
    assert recorded.process.poll() is None


def test_the_superlink_that_flwr_leaves_running_is_stopped_if_it_is_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower gives it a log file in the user's own Flower folder; that of another folder is left alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "mine"))
    wait = [sys.executable, "-c", "import time; time.sleep(600)", "--simulation", "--log-file"]
    own, other = (
        subprocess.Popen([*wait, str(tmp_path / owner / "local-superlink/superlink.log")])
        for owner in ("mine", "theirs")
    )
    try:
        wait_until(lambda: own.pid in [process.pid for process in running.simulations()])  # after its exec
        assert [process.pid for process in running.stop([], wait=10)] == [own.pid]
        assert own.wait(10) == -signal.SIGTERM
        assert other.poll() is None
    finally:
        for process in (own, other):
            process.kill()
            process.wait()


def test_what_does_not_stop_in_time_is_killed(recorded: SimpleNamespace) -> None:
    recorded.process.send_signal(signal.SIGSTOP)  # it cannot react to SIGTERM
    stopped = running.stop([recorded.process.pid], wait=0.3)
    assert [process.pid for process in stopped] == [recorded.process.pid]
    assert recorded.process.wait(10) == -signal.SIGKILL


def test_a_record_of_another_machine_or_of_another_folder_deletes_nothing(
    recorded: SimpleNamespace, tmp_path: Path
) -> None:
    other = tmp_path / "photographs"
    other.mkdir()
    gone = replace(recorded.record, started="earlier")
    files.write_json(recorded.path, asdict(replace(gone, machine="another")))
    files.write_json(recorded.path.with_name("2.json"), asdict(replace(gone, folders=[str(other)])))
    recorded.path.with_name("3.json").write_text("{damaged")
    running.clean_up()
    assert recorded.data.exists() and other.exists()


def test_nodes_that_do_not_start_are_an_error_of_one_line(
    focusfl: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine so busy that no node replies in time."""
    monkeypatch.setattr(simulation, "START_TIMEOUT", 0.01)
    monkeypatch.setattr(roster, "FIRST_REPLY_TIMEOUT", 0.01)
    code, _, err = focusfl(*COMPARE, "--rounds", "1")
    lines = [line for line in err.splitlines() if line.startswith("error")]
    assert code == 1 and len(lines) == 1 and "0 of" in lines[0] and "serial" in lines[0]
    assert "Traceback" not in err
