"""A node's list of allowed apps: code that is not on it never reaches the place where the node's apps run.

Flower's own SuperNode functions with its real state; what the server would send is made here. test_intruders.py has
the same with real processes.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import flwr.app.message.message as flower_message
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supernode.nodestate import NodeStateFactory

from focusfl.deploy import allowed_apps, flower_app
from focusfl.deploy.allowed_apps import app_hash, folder_hash, guard, read_list
from focusfl.util.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's own code
SUPERNODE = "flwr.supernode.start_client_internal"


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """The app that focusfl ships."""
    return flower_app.write_files(tmp_path / "shipped", {"rounds": 3})


def packed(folder: Path) -> bytes:
    return build_fab_from_disk(folder)


def repacked(fab: bytes, change: Callable[[dict[str, bytes]], None], *more: tuple[str, bytes]) -> bytes:
    """The same archive with some files changed, and more files after them, perhaps of the same names."""
    with zipfile.ZipFile(io.BytesIO(fab)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in (*files.items(), *more):
            archive.writestr(name, content)
    return out.getvalue()


def test_settings_do_not_change_an_apps_hash_and_code_does(app: Path, tmp_path: Path) -> None:
    expected = folder_hash(app)
    other = flower_app.write_files(tmp_path / "other", {"rounds": 20, "focus.M": 4, "secure": True})
    assert folder_hash(other) == expected == app_hash(packed(app)) and packed(other) != packed(app)
    for name, text in (("focusfl_app.py", "\n"), ("pyproject.toml", "\n[tool.other]\nx = 1\n"), ("more.py", "")):
        changed = flower_app.write_files(tmp_path / f"with-{name}", {})
        (changed / name).write_text((changed / name).read_text() + text if (changed / name).exists() else "x = 1")
        assert folder_hash(changed) != expected, name
    (other / "pyproject.toml").write_text((other / "pyproject.toml").read_text().replace(":client", ":server"))
    assert folder_hash(other) != expected  # another component is code, too


def test_the_command_line_prints_the_hash_of_the_app_that_it_submits(
    app: Path, focusfl: Callable[..., tuple[int, str, str]]
) -> None:
    assert focusfl("deploy", "app-hash")[:2] == (0, folder_hash(app) + "\n")
    assert focusfl("deploy", "app-hash", app)[:2] == (0, folder_hash(app) + "\n")
    code, _, error = focusfl("deploy", "app-hash", app.parent / "nowhere")
    assert code == 2 and "nowhere" in error


def test_an_archive_with_two_files_of_one_name_is_no_app(app: Path) -> None:
    """The check could read one of them, and Flower could run the other."""
    fab = packed(app)
    assert app_hash(repacked(fab, lambda _: None)) == app_hash(fab)
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = repacked(fab, lambda _: None, ("focusfl_app.py", b"print('mine')"))
    for wrong in (twice, b"", b"PK", fab[:200], repacked(fab, lambda files: files.pop("pyproject.toml"))):  # type: ignore[arg-type,return-value]
        with pytest.raises(InputError):
            app_hash(wrong)


def test_a_list_has_hashes_and_comments_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "allowed-apps"
    path.write_text(f"# ours\n{'a' * 64}  # version 1\n\n{'b' * 64}\n")
    assert read_list(path) == {"a" * 64, "b" * 64}
    for text in ("", "# none\n", "a" * 63, f"{'a' * 64}\nfocusfl-app\n"):
        path.write_text(text)
        with pytest.raises(InputError, match=r"allowed-apps .*app-hash"):
            read_list(path)
    with pytest.raises(InputError, match=r"allowed-apps cannot be read"):
        read_list(tmp_path / "none" / "allowed-apps")


class Sender:
    """A message has a sender; in a process of Flower's own it is set."""

    run_id = node_id = task_id = 1


@pytest.fixture
def supernode(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Flower's module, restored after the test."""
    module = importlib.import_module(SUPERNODE)
    for name in ("_pull_and_store_message", "_verify_fab"):
        monkeypatch.setattr(module, name, vars(module)[name])
    monkeypatch.setattr(flower_message, "TaskIdentity", Sender)
    return module


def offer(supernode: ModuleType, fab: bytes, **lies: Any) -> Any:
    """Send the SuperNode a message of a new run of this app; return its state. The run's details may be lies."""
    store = ObjectStoreFactory()
    state = NodeStateFactory(objectstore_factory=store).state()
    state.set_node_id(1)
    content = hashlib.sha256(fab).hexdigest()
    run = Run.create_empty(7)
    details = {"fab_id": "focusfl/focusfl-app", "fab_version": "1.0.0", "fab_hash": content} | lies
    vars(run).update({name: value for name, value in details.items() if name != "hash_str"})
    message = Message(RecordDict({"ask": ConfigRecord({"t": 0})}), 1, "train")
    message.metadata.__dict__.update(_run_id=7, _message_id=message.object_id)
    objects = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    vars(supernode)["_pull_and_store_message"](
        state=state,
        object_store=store.store(),
        node_config={},
        receive=lambda: (message, get_object_tree(message)),
        get_run=lambda _: run,
        get_fab=lambda *_: Fab(details.get("hash_str", content), fab, {}),
        pull_object=lambda _, name: objects[name],
        confirm_message_received=lambda *_: None,
        trusted_entities=None,
    )
    return state


def runs(state: Any) -> bool:
    """Whether the app was accepted: it is stored, and a task to run it is waiting. Else an error is the reply."""
    replies = state.get_messages_legacy(is_reply=True)
    accepted = state.get_run(7) is not None and bool(state.fab_store)
    assert accepted != (bool(replies) and replies[0].has_error())
    return accepted


def test_only_an_app_on_the_list_is_stored_at_the_node(app: Path, tmp_path: Path, supernode: ModuleType) -> None:
    mine = flower_app.write_files(tmp_path / "mine", {"rounds": 3})
    (mine / "focusfl_app.py").write_text("raise SystemExit('this code runs')")
    assert runs(offer(supernode, packed(mine)))  # Flower itself runs whatever the server sends
    guard(supernode, {folder_hash(app)})
    assert runs(offer(supernode, packed(app)))
    assert not runs(offer(supernode, packed(mine)))
    assert not runs(offer(supernode, b"rubbish"))


@pytest.mark.parametrize(
    "lie",
    [
        {"fab_id": "focusfl/another"},
        {"fab_version": "1.0.0/../../elsewhere"},
        {"fab_hash": "0" * 64},
        {"fab_hash": "0" * 64, "hash_str": "0" * 64},
    ],
    ids=str,
)
def test_an_allowed_app_under_another_name_is_refused(
    app: Path, supernode: ModuleType, lie: dict[str, str]
) -> None:
    """Flower looks for the code in a folder of the name and hash that the server states."""
    guard(supernode, {folder_hash(app)})
    assert not runs(offer(supernode, packed(app), **lie))


def test_a_flower_that_works_in_another_way_is_not_started(
    tmp_path: Path, supernode: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supernode, "_pull_and_store_message", lambda state, get_run, get_fab: None)
    with pytest.raises(InputError, match="this version of Flower"):
        guard(supernode, {"0" * 64})
    monkeypatch.delenv("FLWR_HOME", raising=False)
    (tmp_path / "allowed-apps").write_text("0" * 64)
    monkeypatch.setattr("sys.argv", ["supernode", str(tmp_path / "allowed-apps")])
    with pytest.raises(SystemExit, match="FLWR_HOME"):
        allowed_apps.main()
    monkeypatch.setattr("sys.argv", ["supernode", str(tmp_path / "allowed-apps"), "--trusted-entities", "x.yaml"])
    with pytest.raises(SystemExit, match="--trusted-entities"):
        allowed_apps.main()
