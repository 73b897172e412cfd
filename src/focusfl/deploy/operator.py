"""Flower's clients with the operator's certificate.

`flwr` 1.41 can show no client certificate, and the proxy lets nobody without one near the control API. So its
client is given one, in the one place where it is made; nothing else of Flower changes.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import tomllib
from pathlib import Path
from typing import Any

from focusfl.deploy import writing
from focusfl.util.errors import InputError

CONNECTION = "focusfl"  # what `flwr run APP focusfl` calls it
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def desk(folder: Path) -> Path:
    """The operator's folder: this one, or the one in this deployment. If it was moved, the connection is mended."""
    folder = folder.expanduser().absolute()
    folder = folder / "operator" if (folder / "operator").is_dir() else folder
    for name in ("ca.pem", "operator.pem", "operator.key"):
        if not (folder / name).is_file():
            raise InputError(f"{folder / name}: not there; name the operator's folder of a deployment")
    locate(folder)
    return folder


def command(folder: Path, *arguments: str) -> list[str]:
    """The command that runs `flwr ARGUMENTS` as the operator; the connection, focusfl, is the default one."""
    return [sys.executable, "-P", "-m", "focusfl.deploy", str(desk(folder)), *arguments]


def main() -> None:
    """python -m focusfl.deploy FOLDER ARGUMENTS: `flwr ARGUMENTS` as the operator."""
    try:
        folder = desk(Path(sys.argv[1]))
    except InputError as error:
        sys.exit(f"error: {error}")
    os.environ.update(QUIET, FLWR_HOME=str(folder / "flower"))
    from flwr.cli import utils
    from flwr.cli.app import app

    vars(utils)["ControlHttpClient"] = certified(vars(utils)["ControlHttpClient"], folder)
    sys.argv = ["flwr", *sys.argv[2:]]
    app(prog_name="flwr")


def certified(client: type[Any], folder: Path) -> type[Any]:
    """That client of Flower's, showing the operator's certificate."""

    class Certified(client):  # type: ignore[misc]
        def __init__(self, *args: Any, verify: object = True, **options: Any) -> None:
            if not isinstance(verify, ssl.SSLContext):
                raise InputError(f"only the connection {CONNECTION!r} can be used here")
            verify.load_cert_chain(folder / "operator.pem", folder / "operator.key")
            super().__init__(*args, verify=verify, **options)

    return Certified


def connect(folder: Path, address: str) -> None:
    """Write Flower's connection to the control API at `address`. Flower wants the path of ca.pem in full."""
    home = folder / "flower"
    home.mkdir(mode=0o700, exist_ok=True)
    path = json.dumps(str(folder.absolute() / "ca.pem"), ensure_ascii=False)
    head = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
    writing.public(home / "config.toml", f'{head}address = "{address}"\nroot-certificates = {path}\n')


def connection(folder: Path) -> dict[str, str]:
    """The connection that is written there."""
    path = folder / "flower" / "config.toml"
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))["superlink"][CONNECTION]
        return {"address": found["address"], "root-certificates": found["root-certificates"]}
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise InputError(f"{path}: no connection there ({error}); fetch the file from the deployment") from error


def locate(folder: Path) -> None:
    """Write the connection anew if the folder was moved."""
    found = connection(folder)
    if found["root-certificates"] != str(folder.absolute() / "ca.pem"):
        connect(folder, found["address"])
