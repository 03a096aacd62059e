"""Replies of POP consumption: they leave when the operations behind them are in the journal, and no sooner."""

from collections.abc import Callable
from functools import partial

import structlog

from latermq.broker.pop.sent_answers import SentAnswers
from latermq.errors import Busy, ServiceUnavailable, StoreError
from latermq.protocol.remoting.frames import FLAG_ONEWAY, Command
from latermq.server.handlers.flush_queue import FlushQueue
from latermq.server.remoting.connection import JOINED_BYTES, Connection
from latermq.server.remoting.sliced_requests import Later

_log = structlog.get_logger(__name__)

GiveBack = Callable[[], None]
_Held = tuple[Connection, bytes, GiveBack | None]


class PopReplies:
    """Holds all replies of one turn of the event loop, whichever connections they are for, for one journal record.

    While the journal cannot be written, replies stay here: a client that got one could rely on what a crash forgets.
    """

    def __init__(
        self,
        commit: Callable[[], StoreError | None],
        flush_queue: FlushQueue,
        answers: SentAnswers,
        *,
        max_waiting: int,
        later: Later,
        on_settled: Callable[[], None] = lambda: None,
    ) -> None:
        """`commit` writes the journal. `later` calls back after the other work of this turn."""
        self._commit = commit
        self._flush_queue = flush_queue
        self._answers = answers
        self._max_waiting = max_waiting
        self._later = later
        self._on_settled = on_settled
        self._replies: list[_Held] = []
        self._waiting = 0  # replies, and oneway requests since the last journal record
        self._is_scheduled = False
        self._failure: StoreError | None = None

    def check_pop(self) -> None:
        """Refuse to pop while the journal cannot be written: the messages would be held for nothing."""
        if self._failure is not None:
            raise ServiceUnavailable(f"pops cannot be stored: {self._failure.message}", hint="Free disk space")

    def check_room(self) -> None:
        """Refuse more work while too many replies wait."""
        if self._waiting >= self._max_waiting:
            raise Busy(f"{self._waiting} replies wait for the journal", hint="Try again later")
        if self._flush_queue.is_sync:
            self._flush_queue.check_room()

    def hold(self, connection: Connection, command: Command, reply: bytes) -> None:
        """Send the reply to a request when its operation is journalled."""
        self._waiting += 1
        if not command.flag & FLAG_ONEWAY:
            self._replies.append((connection, reply, None))
        self.settle_soon()

    @property
    def room(self) -> int:
        """How many more requests may wait for the journal."""
        return self._max_waiting - self._waiting

    def hold_run(self, connection: Connection, replies: list[bytes]) -> None:
        """Send the replies to a run of requests when their operations are journalled."""
        self._waiting += len(replies)
        self._replies.append((connection, b"".join(replies), None))
        self.settle_soon()

    def hold_pop(
        self, connection: Connection, reply: bytes, give_back: GiveBack, lease: int = 0, pop_ms: int = 0
    ) -> None:
        """Do the same for popped messages. `give_back` makes them visible again if the client is gone."""
        self._waiting += 1
        self._replies.append((connection, reply, give_back))
        if lease and not connection.is_closing:
            self._answers.note(connection, lease, pop_ms)
        self.settle_soon()

    def on_disconnect(self, connection: Connection) -> None:
        """Shorten the leases of messages that may have been lost with a connection."""
        if self._answers.remove_client(connection):
            self.settle_soon()  # so that this is journalled, and their end is scheduled

    def settle_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._later(self.settle)

    def settle(self) -> None:
        """Write the journal, and send the replies that it covers."""
        self._is_scheduled = False
        failure = self._commit()
        if failure is not None:
            if self._failure is None:
                _log.error("POP journal stalled", reason=failure.remark)
            self._failure = failure
            return
        if self._failure is not None:
            _log.info("POP journal resumed")
            self._failure = None
        replies, self._replies, self._waiting = self._replies, [], 0
        self._send(replies)
        self._flush_queue.on_turn_end()
        self._on_settled()

    def _send(self, replies: list[_Held]) -> None:
        """Send replies, those for the same client joined: each write is counted, and may be a system call."""
        at, end = 0, len(replies)
        while at < end:
            first = at
            connection, frames, _ = replies[at]
            at += 1
            if at < end and replies[at][0] is connection:
                size = len(frames)
                while at < end and replies[at][0] is connection and size + len(replies[at][1]) <= JOINED_BYTES:
                    size += len(replies[at][1])
                    at += 1
                frames = b"".join([frame for _, frame, _ in replies[first:at]])
            if connection.is_closing:
                self._give_back(replies[first:at])
            else:
                self._flush_queue.send(connection, frames, partial(self._give_back, replies[first:at]))

    def _give_back(self, lost: list[_Held]) -> None:
        """Make messages visible again whose replies were not sent."""
        for _, _, give_back in lost:
            if give_back is not None:
                give_back()
                self.settle_soon()

    def statistics(self) -> dict[str, int]:
        """Replies that wait for the journal."""
        return {"unjournalled_replies": self._waiting}
