"""Call the SuperLink as the operator: Flower's command line and its client, with the operator's certificate.

`flwr` 1.41 cannot present a client certificate, and the proxy requires one for the control API. So Flower's client
class is replaced by a subclass that presents it. Nothing else of Flower changes.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import tomllib
from pathlib import Path
from typing import Any

from focusfl.util.errors import InputError

CONNECTION = "focusfl"  # the connection's name in Flower's configuration: `flwr run APP focusfl`
FLOWER_ENV = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def operator_folder(folder: Path) -> Path:
    """Find the operator's folder. If it was moved, update the path in Flower's connection.

    Args:
        folder: The operator's folder, or the deployment's folder that contains it.

    Returns:
        The absolute path of the operator's folder.

    Raises:
        InputError: If the folder lacks the operator's certificate, key or connection.
    """
    folder = folder.expanduser().absolute()
    folder = folder / "operator" if (folder / "operator").is_dir() else folder
    for name in ("ca.pem", "operator.pem", "operator.key"):
        if not (folder / name).is_file():
            raise InputError(f"{folder / name} does not exist; give the operator folder of a deployment")
    update_connection(folder)
    return folder


def flwr_command(folder: Path, *arguments: str) -> list[str]:
    """Return the command that runs `flwr ARGUMENTS` as the operator, over the deployment's connection.

    Args:
        folder: The operator's folder, or the deployment's folder.
        *arguments: Arguments for `flwr`.

    Returns:
        The command, for `subprocess.run`.
    """
    return [sys.executable, "-P", "-m", "focusfl.deploy", str(operator_folder(folder)), *arguments]


def main() -> None:
    """Run `flwr ARGUMENTS` as the operator: python -m focusfl.deploy FOLDER ARGUMENTS."""
    try:
        folder = operator_folder(Path(sys.argv[1]))
    except InputError as error:
        sys.exit(f"error: {error}")
    os.environ.update(FLOWER_ENV, FLWR_HOME=str(folder / "flower"))
    from flwr.cli import utils
    from flwr.cli.app import app

    vars(utils)["ControlHttpClient"] = with_certificate(vars(utils)["ControlHttpClient"], folder)
    sys.argv = ["flwr", *sys.argv[2:]]
    app(prog_name="flwr")


def with_certificate(client: type[Any], folder: Path) -> type[Any]:
    """Return a subclass of one of Flower's HTTP clients that presents the operator's certificate.

    Args:
        client: Flower's client class.
        folder: The operator's folder.

    Returns:
        The subclass. It raises InputError for a connection without TLS.
    """

    class CertificateClient(client):  # type: ignore[misc]
        def __init__(self, *args: Any, verify: object = True, **options: Any) -> None:
            if not isinstance(verify, ssl.SSLContext):
                raise InputError(f"this connection does not use TLS; use the connection {CONNECTION!r}")
            verify.load_cert_chain(folder / "operator.pem", folder / "operator.key")
            super().__init__(*args, verify=verify, **options)

    return CertificateClient


def write_connection(folder: Path, address: str) -> None:
    """Write Flower's connection to the control API.

    Args:
        folder: The operator's folder. Its absolute path is written, because Flower requires one for ca.pem.
        address: host:port of the control API.
    """
    home = folder / "flower"
    home.mkdir(mode=0o700, exist_ok=True)
    ca = json.dumps(str(folder.absolute() / "ca.pem"), ensure_ascii=False)
    head = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
    path = home / "config.toml"
    path.write_text(f'{head}address = "{address}"\nroot-certificates = {ca}\n', encoding="utf-8")
    path.chmod(0o644)


def read_connection(folder: Path) -> dict[str, str]:
    """Read the connection that `write_connection` wrote.

    Args:
        folder: The operator's folder.

    Returns:
        "address" and "root-certificates".

    Raises:
        InputError: If the file is missing or has no such connection.
    """
    path = folder / "flower" / "config.toml"
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))["superlink"][CONNECTION]
        return {"address": values["address"], "root-certificates": values["root-certificates"]}
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise InputError(
            f"{path} does not define the connection {CONNECTION!r} ({error}); copy it from the deployment again"
        ) from error


def update_connection(folder: Path) -> None:
    """Correct the path in the connection if the operator's folder was moved."""
    connection = read_connection(folder)
    if connection["root-certificates"] != str(folder.absolute() / "ca.pem"):
        write_connection(folder, connection["address"])
