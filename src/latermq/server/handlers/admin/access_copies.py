"""Copies of the users: answers name servers, proxies and consoles that keep one, and tells when all have a change.

A question waits until the users change. A question for changes says also which users its process has, so the next one
confirms the answer to the one before. A change is confirmed when all of these processes have it or a later one, or
after a while: a process that hangs delays a change only once, and counts again when it says that it has the newest.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from latermq.access.access_file import encode_access
from latermq.access.secret_box import SecretBox
from latermq.access.users import AccessState
from latermq.errors import InvalidParameter, LaterMQError
from latermq.protocol.remoting.frames import MAX_FRAME_BYTES, Command, encode_response
from latermq.protocol.remoting.users import AccessStateHeader
from latermq.server.handlers.async_replies import answer
from latermq.server.remoting.connection import Connection

MAX_COPY_BYTES = MAX_FRAME_BYTES - 4096
MAX_WAITING_COPIES = 1_000  # questions of name servers and proxies; further ones are answered at once
MAX_COPY_WAIT_MS = 30_000
MAX_CONFIRM_S = 1.0  # how long the reply to a change waits for the copies
MAX_TEXT_CHARS = 128  # of a revision and of a nonce
TURN_BYTES = 1 << 20  # copies that are sent before other clients have their turn
NO_COPIES = {"access_copiers": 0, "waiting_copies": 0, "max_waiting_copies": MAX_WAITING_COPIES}
_NOTHING_KNOWN = 0


class _Encoded(NamedTuple):
    """A state as it is sent."""

    revision: str
    data: bytes


def _encoded(state: AccessState) -> _Encoded:
    return _Encoded(state.revision, encode_access(state, None))


@dataclass(slots=True)
class _Copier:
    """A process that copies the users. States are counted from 1 on."""

    has: int = _NOTHING_KNOWN  # the state that it has said to have; changes do not wait for one that has said nothing
    sent: int = _NOTHING_KNOWN
    sent_revision: str = ""


class _Waiting(NamedTuple):
    """A question that is answered when the users change, or when its time is over."""

    command: Command
    nonce: str
    timer: asyncio.TimerHandle


class _Unconfirmed(NamedTuple):
    """A change that is in effect, but perhaps not at all copies."""

    number: int
    until_s: float
    reply: Callable[[], None]


class AccessCopies:
    """Answers the questions, and replies to changes when the copies have them."""

    def __init__(self, state: AccessState, box: SecretBox) -> None:
        """`box` seals the users for LaterMQ's own processes."""
        self._box = box
        self._number = 1  # of the state that is in effect
        self._copiers: dict[Connection, _Copier] = {}
        self._counts: Counter[int] = Counter()  # the copiers that have each state
        self._waiting: dict[Connection, _Waiting] = {}
        self._due: deque[Connection] = deque()  # those of them that the newest state is sent to
        self._unconfirmed: deque[_Unconfirmed] = deque()
        self._give_up_timer: asyncio.TimerHandle | None = None
        self._prepared = self._encoded = _encoded(state)

    def prepare(self, state: AccessState) -> None:
        """Encode the state that comes into effect next. Called off the loop."""
        self._prepared = _encoded(state)

    def ask(self, connection: Connection, command: Command, header: AccessStateHeader) -> bytes | None:
        """Return the users, or nothing if the copy is up to date. Such a question waits for a change if it may."""
        if max(len(header.revision), len(header.nonce)) > MAX_TEXT_CHARS:
            raise InvalidParameter(f"revision and nonce have at most {MAX_TEXT_CHARS} characters")
        self._note(connection, header)
        if header.revision != self._encoded.revision:
            return self._copy(connection, command, header.nonce)
        self._end_waiting(connection)  # one question of a process waits: it has only one copy
        if header.waitMillis <= 0 or len(self._waiting) >= MAX_WAITING_COPIES:
            return self._nothing_new(command, header.nonce)
        wait_s = min(header.waitMillis, MAX_COPY_WAIT_MS) / 1000
        timer = asyncio.get_running_loop().call_later(wait_s, self._end_waiting, connection)
        self._waiting[connection] = _Waiting(command, header.nonce, timer)
        return None

    def _note(self, connection: Connection, header: AccessStateHeader) -> None:
        """Remember which state a process has. It counts if it will ask again, and has one that is known here."""
        copier = self._copiers.setdefault(connection, _Copier())
        if header.revision == self._encoded.revision:
            has = self._number
        elif header.revision == copier.sent_revision:
            has = copier.sent
        else:
            return
        if header.waitMillis > 0 or copier.has:
            self._set_state(copier, has)
            self._confirm()

    def _set_state(self, copier: _Copier, has: int) -> None:
        if copier.has:
            self._counts[copier.has] -= 1
            if not self._counts[copier.has]:
                del self._counts[copier.has]
        if has:
            self._counts[has] += 1
        copier.has = has

    def on_changed(self) -> None:
        """Send the state that has come into effect to the waiting processes."""
        self._number += 1
        self._encoded = self._prepared
        is_sending = bool(self._due)
        self._due = deque(self._waiting)
        if not is_sending:
            self._send_due()

    def _send_due(self) -> None:
        """Answer waiting processes, in turns with other clients: a copy may take some MiB."""
        sent_bytes = 0
        while self._due and sent_bytes < TURN_BYTES:
            connection = self._due.popleft()
            waiting = self._waiting.pop(connection, None)
            if waiting is None:
                continue
            waiting.timer.cancel()
            try:
                reply = self._copy(connection, waiting.command, waiting.nonce)
            except LaterMQError as error:
                reply = connection.refuse(waiting.command, error)
            answer(connection, waiting.command, reply)
            sent_bytes += len(reply)
        if self._due:
            asyncio.get_running_loop().call_soon(self._send_due)

    def when_copied(self, reply: Callable[[], None]) -> None:
        """Reply when all who copy from this broker have the newest users, or after a while.

        So a right that was just given can be used everywhere.
        """
        if self._lowest() >= self._number:
            reply()
            return
        until_s = asyncio.get_running_loop().time() + MAX_CONFIRM_S
        self._unconfirmed.append(_Unconfirmed(self._number, until_s, reply))
        self._plan_giving_up()

    def _lowest(self) -> int:
        """The newest state that all have. There are few states: a process that is a second behind does not count."""
        return min(self._counts, default=self._number)

    def _confirm(self) -> None:
        """Reply to the changes that all have now."""
        if not self._unconfirmed:
            return
        lowest = self._lowest()
        while self._unconfirmed and self._unconfirmed[0].number <= lowest:
            self._unconfirmed.popleft().reply()
        self._plan_giving_up()

    def _plan_giving_up(self) -> None:
        if self._give_up_timer is not None:
            self._give_up_timer.cancel()
            self._give_up_timer = None
        if self._unconfirmed:
            loop = asyncio.get_running_loop()
            self._give_up_timer = loop.call_at(self._unconfirmed[0].until_s, self._give_up)

    def _give_up(self) -> None:
        """Wait no longer for those who do not have the oldest of these changes."""
        number = self._unconfirmed[0].number
        for copier in self._copiers.values():
            if 0 < copier.has < number:
                self._set_state(copier, _NOTHING_KNOWN)
        self._confirm()

    def on_disconnect(self, connection: Connection) -> None:
        """Forget a process whose connection is lost."""
        copier = self._copiers.pop(connection, None)
        if copier is None:
            return
        waiting = self._waiting.pop(connection, None)
        if waiting is not None:
            waiting.timer.cancel()
        self._set_state(copier, _NOTHING_KNOWN)
        self._confirm()

    def stop(self) -> None:
        """Reply to all changes: no one will ask again."""
        while self._unconfirmed:
            self._unconfirmed.popleft().reply()
        self._plan_giving_up()
        for connection in list(self._waiting):
            self._end_waiting(connection)

    def _end_waiting(self, connection: Connection) -> None:
        """Answer a question that waits, without a change."""
        waiting = self._waiting.pop(connection, None)
        if waiting is not None:
            waiting.timer.cancel()
            answer(connection, waiting.command, self._nothing_new(waiting.command, waiting.nonce))

    def _nothing_new(self, command: Command, nonce: str) -> bytes:
        return encode_response(command, fields={}, body=self._box.seal(b"", nonce.encode()))

    def _copy(self, connection: Connection, command: Command, nonce: str) -> bytes:
        """All users and their secrets, encrypted."""
        revision, data = self._encoded
        if len(data) > MAX_COPY_BYTES:
            raise LaterMQError(
                f"the users and their policies take {len(data)} bytes; an answer has at most {MAX_COPY_BYTES}",
                hint="Name servers and proxies keep their last copy: use entries with prefixes, or remove users",
            )
        copier = self._copiers[connection]
        copier.sent, copier.sent_revision = self._number, revision
        return encode_response(command, fields={}, body=self._box.seal(data, nonce.encode()))

    def statistics(self) -> dict[str, int]:
        """Processes that copy the users, and their questions that wait."""
        return {
            "access_copiers": len(self._copiers),
            "waiting_copies": len(self._waiting),
            "max_waiting_copies": MAX_WAITING_COPIES,
        }
