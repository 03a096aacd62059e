"""A broker's users on a memory disk, with the requests that change them, and rounds of saving that a test can hold."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from latermq.access.secret_box import SecretBox, inner_key
from latermq.access.users import AccessState, User
from latermq.broker.tables.access_table import AccessTable
from latermq.clock import SimulatedClock
from latermq.config import AccessConfig
from latermq.errors import LaterMQError
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, FrameReader, encode_response
from latermq.server.access.guard import AccessGuard
from latermq.server.broker.access_control import inner_user
from latermq.server.handlers.admin.access_copies import AccessCopies
from latermq.server.handlers.admin.access_requests import AccessRequests
from latermq.server.handlers.admin.context import TableSaves
from latermq.server.handlers.async_replies import WhenDone, Work, run_inline
from latermq.server.remoting.connection import Connection
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import open_broker
from tests.support.request_tables import table_of
from tests.support.signed_requests import CheckedConnection, as_received, signed

CONFIG = AccessConfig(enabled=True, init_user="root:r00t")
INNER_SECRET = "i" * 64
_revisions = itertools.count()


def open_table(disk: MemoryDisk, config: AccessConfig = CONFIG) -> AccessTable:
    """The users on a disk, as a broker opens them at its start."""
    table = AccessTable(disk, config, "", lambda: f"revision-{next(_revisions)}", lambda size: b"n" * size)
    table.require_super_user()
    return table


def shown(state: AccessState) -> dict[str, tuple[Any, ...]]:
    """All that a state says, without its revision."""

    def of(user: User) -> tuple[Any, ...]:
        return user.secrets, user.is_super, user.is_enabled, tuple(map(str, state.acl(user.name).custom))

    return {name: of(user) for name, user in state.users.items()}


class _Asking(CheckedConnection):
    def refuse(self, command: Command, error: LaterMQError) -> bytes:
        return encode_response(command, error.code, remark=error.remark)


class UsersScene:
    """The users of a broker, and an administrator that changes them."""

    def __init__(self, disk: MemoryDisk, config: AccessConfig = CONFIG) -> None:
        self.disk = disk
        self.table = open_table(disk, config)
        self.holds = False
        self.held: list[Callable[[], None]] = []
        inner = inner_user(INNER_SECRET)
        self.guard = AccessGuard(self.table, inner, "DefaultCluster", SimulatedClock(), is_enforced=True)
        box = SecretBox(inner_key(INNER_SECRET), lambda size: b"n" * size)
        self.copies = AccessCopies(self.table.state, box)
        saves = TableSaves(open_broker(MemoryDisk(), SimulatedClock()).tables, 100, self._run)
        self._requests = table_of(AccessRequests(self.table, saves, self.guard, self.copies))
        self._requests.set_guard(self.guard)

    def _run(self, works: list[Work], when_done: WhenDone) -> None:
        if self.holds:
            self.held.append(lambda: run_inline(works, when_done))
        else:
            run_inline(works, when_done)

    def release(self) -> None:
        """Do what was held, one round after the other."""
        while self.held:
            self.held.pop(0)()

    def call(self, user: str, code: int, fields: Mapping[str, str], body: bytes = b"", secret: str = "") -> "Asked":
        """Ask for something. The reply comes at once unless rounds are held."""
        asked = Asked()
        command = as_received(code, signed(user, fields, body, secret), body)
        try:
            endpoint = self._requests.find(cast(Connection, asked.connection), command)
            reply = self._requests.answer(endpoint, cast(Connection, asked.connection), command)
        except LaterMQError as error:
            reply = asked.connection.refuse(command, error)
        if isinstance(reply, bytes):
            asked.connection.send(reply)
        return asked

    def create(self, name: str, by: str = "root", **values: object) -> "Asked":
        body = msgspec.json.encode({"password": f"{name}-secret", **values})
        return self.call(by, Request.AUTH_CREATE_USER, {"username": name}, body)

    def delete(self, name: str, by: str = "root") -> "Asked":
        return self.call(by, Request.AUTH_DELETE_USER, {"username": name})

    def grant(self, name: str, resource: str, by: str = "root") -> "Asked":
        entry = {"resource": resource, "actions": ["Pub"], "decision": "Allow"}
        body = msgspec.json.encode({"policies": [{"policyType": "Custom", "entries": [entry]}]})
        return self.call(by, Request.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, body)


class Asked:
    """A request, and its reply when it has come."""

    def __init__(self) -> None:
        self.connection = _Asking()

    @property
    def reply(self) -> Command | None:
        if not self.connection.sent:
            return None
        [command] = FrameReader().feed(b"".join(self.connection.sent))
        return command

    @property
    def remark(self) -> str:
        """Why it was refused; empty if it was not."""
        assert self.reply is not None, "there is no reply yet"
        return (self.reply.remark or "") if self.reply.code else ""
