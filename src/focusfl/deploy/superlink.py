"""The SuperLink of a deployment: Flower's own, with two weaknesses of version 1.41 removed.

A reply may be of any size, and is written to the database before the ServerApp sees it: one large reply locks the
database for everyone. Here a reply may be a few times as large as the message that it answers.

The executor, a child process that starts the runs, may die unnoticed: new runs then stay pending. Here it is
started again.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

LOGGER = logging.getLogger("flwr")  # the log of the SuperLink
REPLY_FACTOR = 4  # a reply may be so many times as large as its message: masked uploads have 8 bytes per weight
MAX_MESSAGES = 100_000  # messages that are remembered, the newest ones
RESTART_PAUSE = 1.0  # seconds before the executor is started again


class ReplyLimits:
    """How many bytes each reply may still bring.

    Args:
        allowance: Bytes that every reply may bring, however small the message.
    """

    def __init__(self, allowance: int) -> None:
        self._allowance = allowance
        self._left: OrderedDict[str, int] = OrderedDict()  # by the message that is answered
        self._messages: OrderedDict[str, str] = OrderedDict()  # by the session in which the reply is uploaded
        self._lock = threading.Lock()

    def sent(self, message: str, size: int) -> None:
        """A node receives this message, of so many bytes."""
        with self._lock:
            self._left.setdefault(message, REPLY_FACTOR * size + self._allowance)
            _forget(self._left)

    def begins(self, session: str, message: str) -> None:
        """A node begins to upload its reply to this message."""
        with self._lock:
            self._messages[session] = message
            self._left.setdefault(message, self._allowance)
            _forget(self._messages)

    def accepts(self, session: str, size: int) -> bool:
        """Whether so many more bytes may come in this session."""
        with self._lock:
            message = self._messages.get(session, "")
            if message not in self._left:
                return False
            self._left[message] -= size
            return self._left[message] >= 0


def limit_replies(megabytes: int) -> None:
    """Make Flower's SuperLink refuse the objects of a reply once it is too large.

    Args:
        megabytes: What every reply may bring, in addition to `REPLY_FACTOR` times the size of its message.
    """
    from flwr.proto.message_pb2 import PushObjectResponse
    from flwr.superlink.servicer.fleet import fleet_handlers

    limits = ReplyLimits(megabytes * 1_000_000)
    pull_messages, push_messages, push_object = (
        getattr(fleet_handlers, name) for name in ("pull_messages", "push_messages", "push_object")
    )

    def pull(request: Any, state: Any, store: Any) -> Any:
        response = pull_messages(request, state, store)
        for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            limits.sent(message.metadata.message_id, stored_bytes(store, tree))
        return response

    def push(request: Any, state: Any) -> Any:
        response = push_messages(request, state)
        limits.begins(response.session_id, request.messages_list[0].metadata.reply_to_message_id)
        return response

    def push_part(request: Any, state: Any) -> Any:
        if limits.accepts(request.session_id, len(request.object_content)):
            return push_object(request, state)
        LOGGER.warning(
            "run %s: the reply of node %s is refused: it is larger than %s times its message and %s MB",
            *(request.run_id, request.node.node_id, REPLY_FACTOR, megabytes),
        )
        return PushObjectResponse(stored=False)

    vars(fleet_handlers).update(pull_messages=pull, push_messages=push, push_object=push_part)


def stored_bytes(store: Any, tree: Any) -> int:
    """Return the size of a message whose objects are in the SuperLink's store, a database."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.state.schema.objectstore_models import StoredObject
    from sqlalchemy import func, select

    ids = {part.object_id for part in iterate_object_tree(tree)}
    sizes = select(func.sum(func.length(StoredObject.content))).where(StoredObject.object_id.in_(ids))
    with store.session() as session:
        return session.scalar(sizes) or 0


def restart_executor() -> None:
    """Make Flower's SuperLink start its executor again when it has died."""
    flower_superlink = _flower_superlink()

    class WatchedLifespan(flower_superlink.SuperLinkLifespan):  # type: ignore[name-defined, misc]
        stopping = False

        def _start_superexec_if_needed(self) -> None:
            super()._start_superexec_if_needed()
            if self.superexec_process is not None:
                threading.Thread(target=self._watch, name="watch-executor", daemon=True).start()

        def _watch(self) -> None:
            process = self.superexec_process
            code = None if process is None else process.wait()
            if not self.stopping:
                LOGGER.error("the SuperLink's executor ended with exit code %s; starting it again", code)
                LOGGER.error("a run that was going on has ended: run it again with resume=true")
                time.sleep(RESTART_PAUSE)
                self._start_superexec_if_needed()

        def shutdown(self) -> None:
            self.stopping = True
            super().shutdown()

    vars(flower_superlink)["SuperLinkLifespan"] = WatchedLifespan


def main(arguments: Iterable[str], reply_mb: int) -> None:
    """Run the SuperLink with Flower's own arguments."""
    limit_replies(reply_mb)
    restart_executor()
    sys.argv = ["flower-superlink", *arguments]
    _flower_superlink().flower_superlink()


def _flower_superlink() -> ModuleType:
    """Return Flower's module; its package has a function of the same name."""
    return import_module("flwr.superlink.cli.flower_superlink")


def _forget(entries: OrderedDict[str, Any]) -> None:
    while len(entries) > MAX_MESSAGES:
        entries.popitem(last=False)
