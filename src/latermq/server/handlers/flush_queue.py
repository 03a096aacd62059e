"""Replies that wait for the disk: with `store.flush = sync`, a send is confirmed when its message is flushed."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from latermq.errors import Busy
from latermq.protocol.remoting.frames import FLAG_ONEWAY, Command
from latermq.server.remoting.connection import Connection
from latermq.store.commit_log import CommitLog

MAX_UNFLUSHED_BYTES = 64 << 20  # of replies that wait for the disk; the reply to a batch may take 330 kB


class FlushBarrier(Protocol):
    """Delays replies until the log is flushed, if `store.flush = sync` requires it."""

    def check_room(self) -> None:
        """Refuse more work while too many replies wait for the disk."""
        ...

    def reply_when_flushed(self, connection: Connection, command: Command, reply: bytes) -> bytes | None:
        """Return the reply if it may be sent now; None if it is sent when the log is flushed to its current end."""
        ...

    def when_flushed(self, then: Callable[[], None]) -> None:
        """Call back when the log is flushed to its current end, whatever `store.flush` is."""
        ...


class FlushQueue:
    """Keeps replies until the log is flushed to the end of their record."""

    def __init__(self, log: CommitLog, request_flush: Callable[[], None], *, is_sync: bool, max_waiting: int) -> None:
        self._log = log
        self._max_waiting = max_waiting
        self._request_flush = request_flush
        self.is_sync = is_sync
        # Replies to senders, in log order.
        self._replies: deque[tuple[int, Connection, bytes, Callable[[], None] | None]] = deque()
        self._reply_bytes = 0
        # Other callbacks that wait for the flush of an offset, in log order.
        self._watchers: deque[tuple[int, Callable[[], None]]] = deque()

    def check_room(self) -> None:
        """Refuse more work at the limit. On a hung disk, replies pile up."""
        if len(self._replies) >= self._max_waiting or self._reply_bytes >= MAX_UNFLUSHED_BYTES:
            raise Busy(
                f"{len(self._replies)} messages are waiting for the disk",
                hint="The disk is slow or hangs; send again later",
            )

    def reply_at(self, end_offset: int, connection: Connection, command: Command, reply: bytes) -> bytes | None:
        """Return the reply if it may be sent now; None if it is sent when the log is flushed to this offset."""
        if not self.is_sync or command.flag & FLAG_ONEWAY:
            return reply
        self._replies.append((end_offset, connection, reply, None))
        self._reply_bytes += len(reply)
        return None

    def send(self, connection: Connection, reply: bytes, on_lost: Callable[[], None] | None = None) -> None:
        """Send a reply that is about the log's current content, now or when that is flushed.

        `on_lost` is called instead if the client is gone by then.
        """
        if self.is_sync and self._log.flushed < self._log.end:
            self._replies.append((self._log.end, connection, reply, on_lost))
            self._reply_bytes += len(reply)
        else:
            connection.send(reply)

    def reply_when_flushed(self, connection: Connection, command: Command, reply: bytes) -> bytes | None:
        log = self._log
        return reply if log.flushed >= log.end else self.reply_at(log.end, connection, command, reply)

    def when_flushed(self, then: Callable[[], None]) -> None:
        log = self._log
        if log.flushed >= log.end:
            then()
            return
        if len(self._watchers) >= self._max_waiting:
            raise Busy(f"{len(self._watchers)} requests are waiting for the disk", hint="Try again later")
        self._watchers.append((log.end, then))
        self._request_flush()

    def on_turn_end(self) -> None:
        """Request a flush after all requests of a turn are served."""
        if self._replies:
            self._request_flush()

    def on_flushed(self, offset: int) -> None:
        """Send the replies and run the callbacks that waited for the flush of this offset."""
        replies = self._replies
        while replies and replies[0][0] <= offset:
            _, connection, reply, on_lost = replies.popleft()
            self._reply_bytes -= len(reply)
            if on_lost is not None and connection.is_closing:
                on_lost()
            else:
                connection.send(reply)
        while self._watchers and self._watchers[0][0] <= offset:
            self._watchers.popleft()[1]()

    def statistics(self) -> dict[str, int]:
        """Replies that wait for the disk."""
        return {
            "unflushed_replies": len(self._replies),
            "unflushed_bytes": self._reply_bytes,
            "max_unflushed_bytes": MAX_UNFLUSHED_BYTES,
        }
