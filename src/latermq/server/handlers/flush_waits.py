"""Replies that wait for the disk: with `store.flush = sync`, a sender hears of its message when the message is safe."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from latermq.broker.broker import Broker
from latermq.errors import Busy
from latermq.protocol.remoting.frames import FLAG_ONEWAY, Command
from latermq.server.remoting.connection import Connection

MAX_UNFLUSHED_BYTES = 64 << 20  # of replies that wait for the disk; that to a batch may take 330 kB


class Flushing(Protocol):
    """Who keeps replies back until the log is flushed, where `store.flush = sync` asks for it."""

    def check_unflushed(self) -> None:
        """Refuse more work while too many replies wait for the disk."""
        ...

    def reply_when_flushed(self, connection: Connection, command: Command, reply: bytes) -> bytes | None:
        """The reply itself if it may go now; None where it is sent once the log is safe up to its present end."""
        ...

    def when_flushed(self, then: Callable[[], None]) -> None:
        """Call back once the log is safe up to its present end, however it is flushed otherwise."""
        ...


class FlushWaits:
    """Keeps replies until the log is flushed up to their record."""

    def __init__(self, broker: Broker, request_flush: Callable[[], None]) -> None:
        self._log = broker.store.log
        self._max_waiting = broker.config.broker.max_unflushed
        self._request_flush = request_flush
        self.is_sync = broker.config.store.flush == "sync"
        # Replies to senders, in the order of the log.
        self._replies: deque[tuple[int, Connection, bytes]] = deque()
        self._reply_bytes = 0
        # Others that wait until the log is safe up to some offset, in the same order.
        self._watchers: deque[tuple[int, Callable[[], None]]] = deque()

    def check_unflushed(self) -> None:
        """On a disk that hangs, replies pile up: at the bound nothing more is accepted."""
        if len(self._replies) >= self._max_waiting or self._reply_bytes >= MAX_UNFLUSHED_BYTES:
            raise Busy(
                f"{len(self._replies)} messages wait for the disk", hint="The disk is slow or hangs; send again later"
            )

    def reply_at(self, end_offset: int, connection: Connection, command: Command, reply: bytes) -> bytes | None:
        """The reply itself if it may go now; None where it is sent once the log is safe up to this offset."""
        if not self.is_sync or command.flag & FLAG_ONEWAY:
            return reply
        self._replies.append((end_offset, connection, reply))
        self._reply_bytes += len(reply)
        return None

    def reply_when_flushed(self, connection: Connection, command: Command, reply: bytes) -> bytes | None:
        log = self._log
        return reply if log.flushed >= log.end else self.reply_at(log.end, connection, command, reply)

    def when_flushed(self, then: Callable[[], None]) -> None:
        log = self._log
        if log.flushed >= log.end:
            then()
            return
        if len(self._watchers) >= self._max_waiting:
            raise Busy(f"{len(self._watchers)} requests wait for the disk", hint="Ask again later")
        self._watchers.append((log.end, then))
        self._request_flush()

    def settled(self) -> None:
        """All requests of a turn were served."""
        if self._replies:
            self._request_flush()

    def flushed(self, offset: int) -> None:
        """The log is safe up to here: answer who waited for it."""
        replies = self._replies
        while replies and replies[0][0] <= offset:
            _, connection, reply = replies.popleft()
            self._reply_bytes -= len(reply)
            connection.send(reply)
        while self._watchers and self._watchers[0][0] <= offset:
            self._watchers.popleft()[1]()

    def statistics(self) -> dict[str, int]:
        """What waits."""
        return {
            "unflushed_replies": len(self._replies),
            "unflushed_bytes": self._reply_bytes,
            "max_unflushed_bytes": MAX_UNFLUSHED_BYTES,
        }
