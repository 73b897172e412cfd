"""What `deploy init` writes: certificates that hold, secrets in their own folders, scripts that start it all."""

from __future__ import annotations

import os
import shutil
import ssl
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from focusfl.deploy import certificates, contents, operator, site
from focusfl.deploy.setup import add, init, renew
from focusfl.deploy.site import MOST_NODES, Ports, Site
from focusfl.util.errors import InputError

HOSTS = ["fl.example.org", "192.0.2.7", "2001:db8::7"]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    init(tmp_path / "site", 3, HOSTS)
    return tmp_path / "site"


def shake(folder: Path, host: str, client: Path | None = None, ask: bool = False, ca: Path | None = None) -> None:
    """A TLS handshake in memory with the server of `folder`, as strict as can be; raises if either side refuses."""
    there = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "server/ca.pem")
    there.load_cert_chain(folder / "server/server.pem", folder / "server/server.key")
    there.verify_mode = ssl.CERT_REQUIRED if ask else ssl.CERT_NONE
    here = ssl.create_default_context(cafile=ca or folder / "nodes/agent-0/ca.pem")
    for context in (there, here):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    if client:
        here.load_cert_chain(client.with_suffix(".pem"), client.with_suffix(".key"))
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [here.wrap_bio(down, up, server_hostname=host), there.wrap_bio(up, down, server_side=True)]
    for side in sides * 3:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    for side in sides:
        side.do_handshake()  # it is done on both


def every(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("host", [*HOSTS, "localhost", "127.0.0.1"])
def test_the_servers_certificate_holds_for_its_hosts(made: Path, host: str) -> None:
    shake(made, host)


def test_it_holds_for_no_other_host_and_under_no_other_authority(made: Path, tmp_path: Path) -> None:
    init(tmp_path / "other", 1, HOSTS)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake(made, "www.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(made, HOSTS[0], ca=tmp_path / "other/server/ca.pem")
    with pytest.raises(ssl.SSLError):
        shake(made, HOSTS[0], tmp_path / "other/operator/operator", ask=True)


def test_the_operators_certificate_is_for_operators_and_the_servers_is_not(made: Path) -> None:
    shake(made, HOSTS[0], made / "operator/operator", ask=True)
    for wrong in (None, made / "server/server"):
        with pytest.raises(ssl.SSLError):
            shake(made, HOSTS[0], wrong, ask=True)
    found = x509.load_pem_x509_certificate((made / "operator/operator.pem").read_bytes())
    assert (made / "server/operators.map").read_text() == f'{certificates.serial(found)} "operator";\n'


def test_each_folder_has_what_its_machine_may_have_and_no_more(made: Path) -> None:
    assert {path.name for path in made.iterdir()} == {
        "README.txt", "authority", "deploy.toml", "nodes", "operator", "server"
    }  # fmt: skip
    found = every(made)
    secrets = {name for name, content in found.items() if b"PRIVATE KEY" in content}
    nodes = {f"nodes/agent-{e}/node.key" for e in range(3)}
    assert secrets == {"authority/ca.key", "server/server.key", "operator/operator.key"} | nodes
    assert len({found[name] for name in secrets}) == len(secrets)
    for e in range(3):
        own = {path.name for path in (made / f"nodes/agent-{e}").iterdir()}
        assert own == {"ca.pem", "node.key", "start-supernode.sh"}
    assert len({found[name] for name in found if name.endswith("ca.pem")}) == 1


def test_a_nodes_key_is_in_the_form_flower_reads_and_the_operator_has_its_public_half(made: Path) -> None:
    for e in range(3):
        key = load_ssh_private_key((made / f"nodes/agent-{e}/node.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp384r1"
        assert load_ssh_public_key((made / f"operator/nodes/agent-{e}.pub").read_bytes()) == key.public_key()


def test_secrets_are_for_their_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        init(tmp_path / "site", 1, HOSTS)
    finally:
        os.umask(before)
    for path in (tmp_path / "site").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        expected = 0o700 if path.is_dir() else {".key": 0o600, ".sh": 0o755}.get(path.suffix, 0o644)
        assert mode == expected, path


def test_keys_are_never_overwritten(made: Path, tmp_path: Path) -> None:
    before = every(made)
    with pytest.raises(InputError, match=r"never overwritten.*deploy add"):
        init(made, 3, HOSTS)
    assert every(made) == before
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="never overwritten"):
        init(tmp_path / "file", 1)
    (tmp_path / "empty").mkdir()
    init(tmp_path / "empty", 1)
    shutil.rmtree(made / "nodes/agent-2")
    add(made)  # agent 3; nobody is made twice
    (made / "nodes/agent-4").mkdir()
    with pytest.raises(InputError, match="never overwritten"):
        add(made)


def test_all_of_it_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(contents, "node", full)
    with pytest.raises(OSError, match="No space"):
        init(tmp_path / "site", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "host",
    ["", " ", "fl.example.org:9092", "https://fl.example.org", "*.example.org", "fl_1.example.org", "-a.org",
     "a..b", "a.", "300.1.1.1", "10.0.0", "fe80::1%eth0", "[::1]", "fl.example.org/x", "$(id)", 'a"b', "a b", "a\n",
     "x" * 64, "bücher.de", ".".join(["abcdefgh"] * 30)],
)  # fmt: skip
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(InputError, match="expected a DNS name"):
        init(tmp_path / "site", 1, ["fl.example.org", host])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("nodes", [-1, 0, MOST_NODES + 1])
def test_how_many_nodes_there_may_be(tmp_path: Path, nodes: int) -> None:
    with pytest.raises(InputError, match=f"from 1 to {MOST_NODES}"):
        init(tmp_path / "site", nodes, HOSTS)
    assert init(tmp_path / "one", 1).nodes == 1
    init(tmp_path / "many", 40)
    assert len(list((tmp_path / "many/nodes").iterdir())) == 40


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bind": "fl.example.org"}, "bind"),
        ({"days": 0}, "days"),
        ({"ports": Ports(node=9093)}, "different"),
        ({"ports": Ports(node=0)}, "ports.node"),
        ({"ports": Ports(supernode=65535)}, "room for 3"),
    ],
)
def test_other_options_are_checked(tmp_path: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        init(tmp_path / "site", 3, HOSTS, **options)


def test_without_hosts_it_is_a_trial_on_this_machine(tmp_path: Path) -> None:
    assert init(tmp_path / "trial", 1).bind == "127.0.0.1"
    assert init(tmp_path / "site", 1, ["fl.example.org", "127.0.0.1"]).bind == "0.0.0.0"
    assert "listen 127.0.0.1:9092 ssl;" in (tmp_path / "trial/server/nginx.conf").read_text()
    assert "listen 0.0.0.0:9092 ssl;" in (tmp_path / "site/server/nginx.conf").read_text()
    assert Site(("::1",), 1, "::").address(9092) == "[::1]:9092"
    assert Site(("::1",), 1, "::").listen(9092) == "[::]:9092 ssl ipv6only=off"


def test_the_configuration_is_read_back(made: Path) -> None:
    assert site.load(made) == Site((*HOSTS,), 3, "0.0.0.0")
    (made / "deploy.toml").write_text("nodes = ")
    with pytest.raises(InputError, match=r"deploy\.toml.*cannot be read"):
        site.load(made)
    with pytest.raises(InputError, match="not there; name the folder"):
        add(made / "nowhere")


def test_add_makes_more_nodes_and_touches_nothing_else(made: Path) -> None:
    before = every(made)
    assert [path.name for path in add(made, 2)] == ["agent-3", "agent-4"]
    after = every(made)
    assert {name for name in before if after[name] != before[name]} == {"deploy.toml"}
    new = {f"nodes/agent-{e}/{name}" for e in (3, 4) for name in ("ca.pem", "node.key", "start-supernode.sh")}
    assert after.keys() - before.keys() == new | {f"operator/nodes/agent-{e}.pub" for e in (3, 4)}


def test_renewed_certificates_hold_with_the_old_keys(made: Path) -> None:
    before = every(made)
    (made / "server/server.key").unlink()  # it is on the server, as it should be
    renew(made, days=10)
    (made / "server/server.key").write_bytes(before["server/server.key"])
    shake(made, HOSTS[0], made / "operator/operator", ask=True)
    changed = {name for name, content in every(made).items() if before[name] != content}
    assert changed == {"server/server.pem", "server/operators.map", "operator/operator.pem"}


def test_a_lost_operators_key_is_replaced_and_no_longer_listed(made: Path) -> None:
    before = every(made)
    for name in ("operator.key", "operator.pem"):
        (made / "operator" / name).unlink()
    renew(made)
    shake(made, HOSTS[0], made / "operator/operator", ask=True)
    assert (made / "operator/operator.key").read_bytes() != before["operator/operator.key"]
    assert len((made / "server/operators.map").read_text().splitlines()) == 1


def test_nothing_is_renewed_without_the_authoritys_key(made: Path, tmp_path: Path) -> None:
    init(tmp_path / "other", 1)
    shutil.copy(tmp_path / "other/authority/ca.key", made / "authority/ca.key")
    with pytest.raises(InputError, match="does not belong to"):
        renew(made)
    (made / "authority/ca.key").unlink()
    with pytest.raises(InputError, match="bring back the authority's folder"):
        renew(made)


def test_a_moved_operators_folder_works_where_it_is(made: Path, tmp_path: Path) -> None:
    desk = tmp_path / 'my "desk"'
    shutil.move(made / "operator", desk)
    assert operator.command(desk, "run", "app")[-3:] == [str(desk), "run", "app"]
    found = tomllib.loads((desk / "flower/config.toml").read_text())["superlink"]
    assert found["default"] == "focusfl"
    assert found["focusfl"] == {"address": "fl.example.org:9093", "root-certificates": str(desk / "ca.pem")}
    with pytest.raises(InputError, match="name the operator's folder"):
        operator.desk(made)


def start(path: Path, bin: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a start script with stand-ins for Flower's programs that print what they are given."""
    bin.mkdir(exist_ok=True)
    for name in ("flower-superlink", "flower-supernode"):
        (bin / name).write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\nenv\n')
        (bin / name).chmod(0o755)
    env = {"PATH": f"{bin}:/usr/bin:/bin", "NO_PROXY": "example.org"}
    return subprocess.run([path, *map(str, arguments)], env=env, capture_output=True, text=True, timeout=20)


QUIET = {"FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1", "RAY_USAGE_STATS_ENABLED=0"}


def test_the_superlink_starts_on_loopback_with_keys_and_without_installing(made: Path, tmp_path: Path) -> None:
    lines = start(made / "server/start-superlink.sh", tmp_path / "bin").stdout.splitlines()
    assert lines[:4] == ["--host", "127.0.0.1", "--port", "9091"]
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation", *QUIET} <= set(lines)
    assert "--insecure" not in lines
    assert "NO_PROXY=127.0.0.1,localhost,example.org" in lines


def test_a_supernode_gets_its_agent_data_and_keep(made: Path, tmp_path: Path) -> None:
    script, data = made / "nodes/agent-2/start-supernode.sh", tmp_path / "our data"
    missing = start(script, tmp_path / "bin")
    assert missing.returncode == 1 and "put this agent's data there" in missing.stderr
    data.mkdir()
    lines = start(script, tmp_path / "bin", data).stdout.splitlines()
    assert lines[lines.index("--superlink") + 1] == "fl.example.org:9092"
    assert lines[lines.index("--port") + 1] == "9102"
    keep = made / "nodes/agent-2/keep"
    assert lines[lines.index("--node-config") + 1] == f'agent=2 data="{data}" keep="{keep}"'
    assert keep.is_dir() and set(lines) >= QUIET
    (tmp_path / 'a"b').mkdir()
    assert "name other folders" in start(script, tmp_path / "bin", tmp_path / 'a"b').stderr
    alone = subprocess.run(
        [script, data], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=20
    )
    assert alone.returncode == 1 and "activate the environment" in alone.stderr
