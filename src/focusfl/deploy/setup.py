"""Write a deployment: `init` from nothing, `add` for more nodes, `renew` for certificates that run out."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from focusfl.deploy import contents, operator, site
from focusfl.deploy.certificates import Key
from focusfl.deploy.site import Ports, Site
from focusfl.util import files
from focusfl.util.errors import InputError, require


def init(
    folder: Path,
    nodes: int,
    hosts: Sequence[str] = (),
    *,
    bind: str | None = None,
    ports: Ports | None = None,
    days: int = 730,
) -> Site:
    """Write server/, operator/, nodes/agent-0/ ... and authority/: each machine gets its own folder and no other.

    hosts  names and addresses of the server; none: a trial on this machine alone
    bind   address that the proxy listens on; by default all, or loopback in a trial
    """
    chosen = site.make(hosts, nodes, bind, ports or Ports(), days)
    folder = folder.expanduser().absolute()
    with files.readable_errors(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(
                f"{folder}: is not empty, and keys are never overwritten. For more nodes: focusfl deploy add; "
                "for new certificates: focusfl deploy renew; for another deployment name another folder"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))  # all of it or nothing
        try:
            contents.fill(draft, chosen)
            draft.replace(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        operator.locate(folder / "operator")
    return chosen


def add(folder: Path, nodes: int = 1) -> list[Path]:
    """Folders for more nodes, numbered after those there are. The server stays as it is; register the new keys."""
    old = site.load(folder)
    require("nodes", nodes, nodes >= 1, "a whole number, 1 or more")
    new = site.make(old.hosts, old.nodes + nodes, old.bind, old.ports, old.days)
    with files.readable_errors(folder):
        made = [contents.node(folder, new, e) for e in range(old.nodes, new.nodes)]
        files.write_text(folder / site.FILE, new.toml())
    return made


def renew(folder: Path, days: int | None = None) -> None:
    """Sign the server's and the operator's certificate anew; make a key where key and certificate are both gone.

    Keys that are there stay. The operator's earlier certificate no longer counts once the proxy has the new list.
    """
    old = site.load(folder)
    chosen = replace(old, days=old.days if days is None else days)
    require("days", chosen.days, 1 <= chosen.days <= site.MOST_DAYS, f"a whole number from 1 to {site.MOST_DAYS}")
    path = folder / "authority" / "ca.key"
    if not path.is_file():
        raise InputError(f"{path}: not there; bring back the authority's folder from where you keep it")
    with files.readable_errors(folder):
        try:
            key = load_pem_private_key(path.read_bytes(), password=None)
            ca = x509.load_pem_x509_certificate(path.with_suffix(".pem").read_bytes())
        except ValueError as error:
            raise InputError(f"{path}: it or ca.pem is damaged; bring back the originals") from error
        if not isinstance(key, Key) or key.public_key() != ca.public_key():
            raise InputError(f"{path}: does not belong to ca.pem next to it; bring back the originals")
        contents.certify(folder, chosen, ca, key)
