"""The shared context of administration requests: table saves off the loop, and replies that wait."""

from collections.abc import Callable
from dataclasses import dataclass

from latermq.broker.admin.runtime_info import Identity
from latermq.broker.tables.table_saver import Tables
from latermq.broker.tables.topics import Topics
from latermq.config import Config
from latermq.errors import Busy, LaterMQError
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.server.handlers.async_replies import RunOffLoop, WhenDone, Work, answer, run_inline
from latermq.server.remoting.connection import Connection

Announce = Callable[[Callable[[], None]], None]

MAX_REPLY_BYTES = 64 << 20  # of replies that wait for their change to be saved


class TableSaves:
    """Saves changed tables in rounds. One round serves all requests that are waiting when it starts."""

    def __init__(self, tables: Tables, max_waiting: int, run_off_loop: RunOffLoop = run_inline) -> None:
        """`run_off_loop` does blocking work off the loop, in order."""
        self._savers = tables.savers
        self._run_off_loop = run_off_loop
        self._max_waiting = max_waiting
        self._next: list[tuple[list[Work], WhenDone]] = []
        self._is_running = False
        self.waiting = 0
        self._reply_bytes = 0

    def check_room(self) -> None:
        """Refuse a change, before it is made, while too many changes are waiting for the disk."""
        if self.waiting >= self._max_waiting or self._reply_bytes >= MAX_REPLY_BYTES:
            raise Busy(
                f"{self.waiting} changes are waiting to be saved",
                hint="Try again later: the disk is slow, or broker.max_unsaved is too low for so many changes",
            )

    def save(self, works: list[Work], when_done: WhenDone, reply_bytes: int = 0) -> None:
        """Do this work, then save the changed tables. `reply_bytes` is the size of the reply that waits for it."""

        def done(error: LaterMQError | None) -> None:
            self.waiting -= 1
            self._reply_bytes -= reply_bytes
            when_done(error)

        self.waiting += 1
        self._reply_bytes += reply_bytes
        self._next.append((works, done))
        if not self._is_running:
            self._start_round()

    def _start_round(self) -> None:
        waiting, self._next = self._next, []
        works = dict.fromkeys(work for works, _ in waiting for work in works)  # shared work is done once
        self._is_running = True

        def done(error: LaterMQError | None) -> None:
            self._is_running = False
            for _, when_done in waiting:
                when_done(error)
            if self._next and not self._is_running:
                self._start_round()

        self._run_off_loop([*works, *self._savers()], done)

    def statistics(self) -> dict[str, int]:
        """Changes and replies that wait to be saved."""
        return {
            "unsaved_changes": self.waiting,
            "unsaved_reply_bytes": self._reply_bytes,
            "max_unsaved_reply_bytes": MAX_REPLY_BYTES,
        }


@dataclass(frozen=True)
class AdminContext:
    """`saves` saves changed tables off the loop; `announce` sends the topics to the name servers, then calls back."""

    topics: Topics
    config: Config
    identity: Identity
    saves: TableSaves
    announce: Announce

    def answer_when_saved(self, connection: Connection, command: Command, reply: bytes) -> None:
        """Reply after all changes are saved, so that a confirmed change survives a crash."""

        def when_done(error: LaterMQError | None) -> None:
            answer(connection, command, reply if error is None else connection.refuse(command, error))

        self.saves.save([], when_done, len(reply))

    def answer_when_announced(self, connection: Connection, command: Command, works: list[Work]) -> None:
        """Reply after the work is done, saved and announced: a route query after the reply must find the topic."""
        self.topics.needs_registration = False

        def when_done(error: LaterMQError | None) -> None:
            self.saves.waiting += 1  # for the name servers
            reply = encode_response(command) if error is None else connection.refuse(command, error)
            self.announce(lambda: on_announced(reply))

        def on_announced(reply: bytes) -> None:
            self.saves.waiting -= 1
            answer(connection, command, reply)

        self.saves.save(works, when_done)
