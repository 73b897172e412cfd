"""What `focusfl deploy init` writes: valid certificates, secrets in their own folders, working start scripts."""

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

from focusfl.deploy import certificates, operator, setup
from focusfl.deploy.config import MAX_NODES, DeployConfig, Ports, load_config
from focusfl.deploy.setup import add, init, renew, replace_node
from focusfl.flower.secure_sums.identity import NodeSetup
from focusfl.util.errors import InputError

HOSTS = ["fl.example.org", "192.0.2.7", "2001:db8::7"]
NODE_FILES = {"ca.pem", "node.key", "signing.key", "signing.pem", "start-supernode.sh"}


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    init(tmp_path / "site", 3, HOSTS)
    return tmp_path / "site"


def handshake(
    folder: Path, host: str, client: Path | None = None, require_client: bool = False, ca: Path | None = None
) -> None:
    """Do a strict TLS handshake in memory with the server of `folder`; raise if either side refuses."""
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "server/ca.pem")
    server_context.load_cert_chain(folder / "server/server.pem", folder / "server/server.key")
    server_context.verify_mode = ssl.CERT_REQUIRED if require_client else ssl.CERT_NONE
    client_context = ssl.create_default_context(cafile=ca or folder / "nodes/agent-0/ca.pem")
    for context in (server_context, client_context):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    if client:
        client_context.load_cert_chain(client.with_suffix(".pem"), client.with_suffix(".key"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    sides = [client_side, server_context.wrap_bio(to_server, to_client, server_side=True)]
    for side in sides * 3:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    for side in sides:
        side.do_handshake()  # both sides must have finished


def read_all(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("host", [*HOSTS, "localhost", "127.0.0.1"])
def test_the_servers_certificate_is_valid_for_its_hosts(deployment: Path, host: str) -> None:
    handshake(deployment, host)


def test_it_is_valid_for_no_other_host_and_under_no_other_authority(deployment: Path, tmp_path: Path) -> None:
    init(tmp_path / "other", 1, HOSTS)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(deployment, "www.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(deployment, HOSTS[0], ca=tmp_path / "other/server/ca.pem")
    with pytest.raises(ssl.SSLError):
        handshake(deployment, HOSTS[0], tmp_path / "other/operator/operator", require_client=True)


def test_the_operators_certificate_is_for_operators_and_the_servers_is_not(deployment: Path) -> None:
    handshake(deployment, HOSTS[0], deployment / "operator/operator", require_client=True)
    for wrong in (None, deployment / "server/server"):
        with pytest.raises(ssl.SSLError):
            handshake(deployment, HOSTS[0], wrong, require_client=True)
    found = x509.load_pem_x509_certificate((deployment / "operator/operator.pem").read_bytes())
    assert (deployment / "server/operators.map").read_text() == f'{certificates.serial_number(found)} "operator";\n'


def test_each_folder_has_what_its_machine_needs_and_no_more(deployment: Path) -> None:
    assert {path.name for path in deployment.iterdir()} == {
        "README.txt", "authority", "deploy.toml", "nodes", "operator", "server"
    }  # fmt: skip
    found = read_all(deployment)
    secrets = {name for name, content in found.items() if b"PRIVATE KEY" in content}
    nodes = {f"nodes/agent-{e}/{name}.key" for e in range(3) for name in ("node", "signing")}
    assert secrets == {"authority/ca.key", "server/server.key", "operator/operator.key"} | nodes
    assert len({found[name] for name in secrets}) == len(secrets)
    for e in range(3):
        own = {path.name for path in (deployment / f"nodes/agent-{e}").iterdir()}
        assert own == NODE_FILES
    assert len({found[name] for name in found if name.endswith("ca.pem")}) == 1


def test_a_nodes_key_has_flowers_format_and_the_operator_has_its_public_half(deployment: Path) -> None:
    for e in range(3):
        key = load_ssh_private_key((deployment / f"nodes/agent-{e}/node.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp384r1"
        assert load_ssh_public_key((deployment / f"operator/nodes/agent-{e}.pub").read_bytes()) == key.public_key()


def test_every_nodes_signing_key_is_certified_for_its_own_number_alone(deployment: Path, tmp_path: Path) -> None:
    nodes = {e: NodeSetup.load(e, deployment / f"nodes/agent-{e}", minimum=3) for e in range(3)}
    for e, me in nodes.items():
        assert me.minimum == 3
        for other in nodes.values():  # every node recognises every other one
            assert other.trusted.signing_key(e, me.credential) == me.key.public_key()
            if other.e != e:
                with pytest.raises(InputError, match=f"agent {other.e} .*focusfl agent {e}"):
                    me.trusted.signing_key(other.e, me.credential)
    with pytest.raises(InputError, match=r"agent 1 .*focusfl agent 0"):
        NodeSetup.load(1, deployment / "nodes/agent-0")
    shutil.copy(deployment / "nodes/agent-1/signing.key", deployment / "nodes/agent-0")
    with pytest.raises(InputError, match=r"signing\.key does not belong"):
        NodeSetup.load(0, deployment / "nodes/agent-0")
    (deployment / "nodes/agent-0/signing.key").write_bytes(b"x")
    with pytest.raises(InputError, match=r"signing\.key .*not readable"):
        NodeSetup.load(0, deployment / "nodes/agent-0")
    init(tmp_path / "other", 3, HOSTS)
    stranger = NodeSetup.load(2, tmp_path / "other/nodes/agent-2")
    with pytest.raises(InputError, match=r"authority has not certified .*agent 2"):
        nodes[1].trusted.signing_key(2, stranger.credential)


def test_an_agents_certificate_opens_no_connection(deployment: Path) -> None:
    """It is for signatures: neither an operator's nor a server's."""
    agent = deployment / "nodes/agent-0/signing"
    with pytest.raises(ssl.SSLError):
        handshake(deployment, HOSTS[0], agent, require_client=True)
    for suffix in (".pem", ".key"):
        shutil.copy(agent.with_suffix(suffix), (deployment / "server/server").with_suffix(suffix))
    with pytest.raises(ssl.SSLError):
        handshake(deployment, HOSTS[0])


def test_a_replaced_node_keeps_its_number_and_has_new_keys(deployment: Path) -> None:
    before = read_all(deployment)
    with pytest.raises(InputError, match=r"agent-1 already exists"):
        replace_node(deployment, 1)
    shutil.rmtree(deployment / "nodes/agent-1")
    assert replace_node(deployment, 1) == deployment / "nodes/agent-1"
    after = read_all(deployment)
    changed = {name for name in before if after[name] != before[name]}
    keys = {f"nodes/agent-1/{name}" for name in ("node.key", "signing.key", "signing.pem")}
    assert changed == keys | {"operator/nodes/agent-1.pub"} and after.keys() == before.keys()
    assert NodeSetup.load(1, deployment / "nodes/agent-1")
    with pytest.raises(InputError, match="agent = 3"):
        replace_node(deployment, 3)


def test_only_the_owner_can_read_secrets_with_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        init(tmp_path / "site", 1, HOSTS)
    finally:
        os.umask(before)
    for path in (tmp_path / "site").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        expected = 0o700 if path.is_dir() else {".key": 0o600, ".sh": 0o755}.get(path.suffix, 0o644)
        assert mode == expected, path


def test_keys_are_never_overwritten(deployment: Path, tmp_path: Path) -> None:
    before = read_all(deployment)
    with pytest.raises(InputError, match=r"site .*overwritten.*deploy add"):
        init(deployment, 3, HOSTS)
    assert read_all(deployment) == before
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file .*overwritten"):
        init(tmp_path / "file", 1)
    (tmp_path / "empty").mkdir()
    init(tmp_path / "empty", 1)
    shutil.rmtree(deployment / "nodes/agent-2")
    add(deployment)  # agent 3: numbers are not used twice
    (deployment / "nodes/agent-4").mkdir()
    with pytest.raises(InputError, match=r"agent-4 .*overwritten"):
        add(deployment)


def test_a_failed_init_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(setup, "_write_node", full)
    with pytest.raises(OSError, match="No space"):
        init(tmp_path / "site", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "host",
    ["", " ", "fl.example.org:9092", "https://fl.example.org", "*.example.org", "fl_1.example.org", "-a.org",
     "a..b", "a.", "300.1.1.1", "10.0.0", "fe80::1%eth0", "[::1]", "fl.example.org/x", "$(id)", 'a"b', "a b", "a\n",
     "x" * 64, "bücher.de", ".".join(["abcdefgh"] * 30)],
)  # fmt: skip
def test_an_invalid_host_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(InputError, match="DNS name"):
        init(tmp_path / "site", 1, ["fl.example.org", host])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("nodes", [-1, 0, MAX_NODES + 1])
def test_the_number_of_nodes_is_checked(tmp_path: Path, nodes: int) -> None:
    with pytest.raises(InputError, match=f"nodes .*{MAX_NODES}"):
        init(tmp_path / "site", nodes, HOSTS)
    assert init(tmp_path / "one", 1).nodes == 1
    init(tmp_path / "many", 40)
    assert len(list((tmp_path / "many/nodes").iterdir())) == 40


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bind": "fl.example.org"}, "bind"),
        ({"days": 0}, "days"),
        ({"ports": Ports(node=9093)}, "ports .*different"),
        ({"ports": Ports(node=0)}, r"ports\.node"),
        ({"ports": Ports(supernode=65535)}, r"ports\.supernode .*65533"),
    ],
)
def test_other_options_are_checked(tmp_path: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        init(tmp_path / "site", 3, HOSTS, **options)


def test_without_hosts_the_proxy_listens_on_loopback_only(tmp_path: Path) -> None:
    assert init(tmp_path / "trial", 1).bind == "127.0.0.1"
    assert init(tmp_path / "site", 1, ["fl.example.org", "127.0.0.1"]).bind == "0.0.0.0"
    assert "listen 127.0.0.1:9092 ssl;" in (tmp_path / "trial/server/nginx.conf").read_text()
    assert "listen 0.0.0.0:9092 ssl;" in (tmp_path / "site/server/nginx.conf").read_text()
    assert DeployConfig(("::1",), 1, "::").address(9092) == "[::1]:9092"
    assert DeployConfig(("::1",), 1, "::").nginx_listen(9092) == "[::]:9092 ssl ipv6only=off"


def test_the_configuration_is_written_and_loaded(deployment: Path) -> None:
    assert load_config(deployment) == DeployConfig((*HOSTS,), 3, "0.0.0.0")
    (deployment / "deploy.toml").write_text("nodes = ")
    with pytest.raises(InputError, match=r"deploy\.toml .*not valid"):
        load_config(deployment)
    with pytest.raises(InputError, match=r"deploy\.toml does not exist"):
        add(deployment / "nowhere")


def test_add_writes_new_nodes_and_changes_nothing_else(deployment: Path) -> None:
    before = read_all(deployment)
    assert [path.name for path in add(deployment, 2)] == ["agent-3", "agent-4"]
    after = read_all(deployment)
    assert {name for name in before if after[name] != before[name]} == {"deploy.toml"}
    new = {f"nodes/agent-{e}/{name}" for e in (3, 4) for name in NODE_FILES}
    assert after.keys() - before.keys() == new | {f"operator/nodes/agent-{e}.pub" for e in (3, 4)}


def test_renewed_certificates_are_valid_with_the_old_keys(deployment: Path) -> None:
    before = read_all(deployment)
    (deployment / "server/server.key").unlink()  # it is on the server only, as recommended
    renew(deployment, days=10)
    (deployment / "server/server.key").write_bytes(before["server/server.key"])
    handshake(deployment, HOSTS[0], deployment / "operator/operator", require_client=True)
    changed = {name for name, content in read_all(deployment).items() if before[name] != content}
    assert changed == {"server/server.pem", "server/operators.map", "operator/operator.pem"}


def test_a_lost_operators_key_is_replaced_and_no_longer_listed(deployment: Path) -> None:
    before = read_all(deployment)
    for name in ("operator.key", "operator.pem"):
        (deployment / "operator" / name).unlink()
    renew(deployment)
    handshake(deployment, HOSTS[0], deployment / "operator/operator", require_client=True)
    assert (deployment / "operator/operator.key").read_bytes() != before["operator/operator.key"]
    assert len((deployment / "server/operators.map").read_text().splitlines()) == 1


def test_renewal_needs_the_authoritys_key(deployment: Path, tmp_path: Path) -> None:
    init(tmp_path / "other", 1)
    shutil.copy(tmp_path / "other/authority/ca.key", deployment / "authority/ca.key")
    with pytest.raises(InputError, match=r"ca\.key does not belong"):
        renew(deployment)
    (deployment / "authority/ca.key").unlink()
    for change in (renew, add):  # a new node's signing key is certified too
        with pytest.raises(InputError, match=r"ca\.key does not exist"):
            change(deployment)
    assert not (deployment / "nodes/agent-3").exists()


def test_an_operators_folder_that_was_moved_works(deployment: Path, tmp_path: Path) -> None:
    moved = tmp_path / 'my "folder"'
    shutil.move(deployment / "operator", moved)
    assert operator.flwr_command(moved, "run", "app")[-3:] == [str(moved), "run", "app"]
    found = tomllib.loads((moved / "flower/config.toml").read_text())["superlink"]
    assert found["default"] == "focusfl"
    assert found["focusfl"] == {"address": "fl.example.org:9093", "root-certificates": str(moved / "ca.pem")}
    with pytest.raises(InputError, match=r"ca\.pem does not exist"):
        operator.operator_folder(deployment)


def start(path: Path, bin: Path, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a start script with fake Flower programs that print their arguments and environment."""
    bin.mkdir(exist_ok=True)
    for name in ("focusfl", "flower-supernode"):
        (bin / name).write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\nenv\n')
        (bin / name).chmod(0o755)
    env = {"PATH": f"{bin}:/usr/bin:/bin", "NO_PROXY": "example.org"} | more
    return subprocess.run([path, *map(str, arguments)], env=env, capture_output=True, text=True, timeout=20)


QUIET = {"FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1", "RAY_USAGE_STATS_ENABLED=0"}


def test_the_superlink_starts_on_loopback_with_keys_and_without_installing(
    deployment: Path, tmp_path: Path
) -> None:
    lines = start(deployment / "server/start-superlink.sh", tmp_path / "bin").stdout.splitlines()
    assert lines[:4] == ["deploy", "superlink", "--reply-mb", "16"]
    assert lines[4:8] == ["--host", "127.0.0.1", "--port", "9091"]
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation", *QUIET} <= set(lines)
    assert "--insecure" not in lines
    assert "NO_PROXY=127.0.0.1,localhost,example.org" in lines


def test_a_supernode_gets_its_agent_data_and_keep(deployment: Path, tmp_path: Path) -> None:
    script, data = deployment / "nodes/agent-2/start-supernode.sh", tmp_path / "our data"
    missing = start(script, tmp_path / "bin")
    assert missing.returncode == 1 and f"{script.parent / 'data'} does not exist" in missing.stderr
    data.mkdir()
    lines = start(script, tmp_path / "bin", data).stdout.splitlines()
    assert lines[lines.index("--superlink") + 1] == "fl.example.org:9092"
    assert lines[lines.index("--port") + 1] == "9102"
    keep = deployment / "nodes/agent-2/keep"
    assert lines[lines.index("--node-config") + 1] == (
        f'agent=2 data="{data}" keep="{keep}" identity="{script.parent}" minimum=2 secure=false'
    )
    assert keep.is_dir() and set(lines) >= QUIET
    (tmp_path / 'a"b').mkdir()
    quoted = start(script, tmp_path / "bin", tmp_path / 'a"b')
    assert quoted.returncode == 1 and "quotes" in quoted.stderr
    alone = subprocess.run(
        [script, data], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=20
    )
    assert alone.returncode == 1 and "flower-supernode was not found" in alone.stderr


def test_a_nodes_own_rules_are_in_its_start_script(tmp_path: Path) -> None:
    """Its minimum is more than half of the nodes; the node's administrator may change it, the server may not."""
    init(tmp_path / "a site", 9)
    script = tmp_path / "a site/nodes/agent-4/start-supernode.sh"
    (script.parent / "data").mkdir()

    def rules(**more: str) -> str:
        lines = start(script, tmp_path / "bin", **more).stdout.splitlines()
        return lines[lines.index("--node-config") + 1].split(f'identity="{script.parent}" ')[1]

    assert rules() == "minimum=5 secure=false"
    assert rules(MINIMUM="7", SECURE="true") == "minimum=7 secure=true"
    for wrong in ({"MINIMUM": "1"}, {"MINIMUM": "x"}, {"MINIMUM": "-3"}, {"SECURE": "yes"}):
        refused = start(script, tmp_path / "bin", **wrong)
        assert refused.returncode == 1 and f"{next(iter(wrong))}=" in refused.stderr
    assert start(script, tmp_path / "bin").stdout.splitlines()[0] == "--superlink"
    (script.parent / "allowed-apps").write_text("0" * 64)
    started = start(script, tmp_path / "bin").stdout.splitlines()
    assert started[:4] == ["deploy", "supernode", str(script.parent / "allowed-apps"), "--superlink"]
    init(tmp_path / "two", 2)
    assert "MINIMUM:-2}" in (tmp_path / "two/nodes/agent-0/start-supernode.sh").read_text()
