"""What all administration handlers stand on: the broker, its work beside the loop, and answers that come later."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from latermq.broker.admin.runtime_info import Identity
from latermq.broker.broker import Broker
from latermq.broker.tables.table_saver import do_all
from latermq.errors import Busy, LaterMQError
from latermq.protocol.remoting.frames import FLAG_ONEWAY, Command, encode_response
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.stepwise import LookUps, Reply, Stepwise
from latermq.timer.steps import Steps

Handler = Callable[[Connection, Command], bytes | None]
Work = Callable[[], None]
WhenDone = Callable[[LaterMQError | None], None]
Beside = Callable[[list[Work], WhenDone], None]

MAX_REPLY_BYTES = 64 << 20  # of replies that wait for their change to be saved
MAX_TABLES = 6  # that are made in slices at a time
MAX_UNREAD_REPLY_BYTES = 4096  # what a late reply may take where the peer is behind with reading


def do_at_once(works: list[Work], when_done: WhenDone) -> None:
    """Do the work here and now, where nobody else needs the thread."""
    try:
        do_all(works)
    except LaterMQError as error:
        when_done(error)
    else:
        when_done(None)


def tell_nobody(when_told: Callable[[], None]) -> None:
    """There is no name server to tell."""
    when_told()


class TableSaves:
    """Saves changed tables for those who wait for it: one copy serves everyone who waits when its round starts."""

    def __init__(self, broker: Broker, beside: Beside = do_at_once) -> None:
        """`beside` does work that blocks, in order, off the loop."""
        self._savers = broker.tables.savers
        self._beside = beside
        self._max_waiting = broker.config.broker.max_unsaved
        self._next: list[tuple[list[Work], WhenDone]] = []
        self._is_running = False
        self.waiting = 0
        self._reply_bytes = 0

    def check_room(self) -> None:
        """Refuse a change, before it is made, while too many wait for the disk."""
        if self.waiting >= self._max_waiting or self._reply_bytes >= MAX_REPLY_BYTES:
            raise Busy(
                f"{self.waiting} changes wait to be saved",
                hint="The disk is slow, or more is changed at once than broker.max_unsaved allows; try again later",
            )

    def save(self, works: list[Work], when_done: WhenDone, reply_bytes: int = 0) -> None:
        """Do this work, then save what has changed; a reply of so many bytes waits for it."""

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
        works = dict.fromkeys(work for works, _ in waiting for work in works)  # what two want is done once
        self._is_running = True

        def done(error: LaterMQError | None) -> None:
            self._is_running = False
            for _, when_done in waiting:
                when_done(error)
            if self._next and not self._is_running:
                self._start_round()

        self._beside([*works, *self._savers()], done)

    def statistics(self) -> dict[str, int]:
        """What waits."""
        return {
            "unsaved_changes": self.waiting,
            "unsaved_reply_bytes": self._reply_bytes,
            "max_unsaved_reply_bytes": MAX_REPLY_BYTES,
        }


class FewTables:
    """Lets few of the requests go on at once that make a table in slices: each may take 20 MB until it is sent."""

    def __init__(self) -> None:
        self._under_way = 0

    def statistics(self) -> dict[str, int]:
        """How many are being made."""
        return {"operators_tables": self._under_way, "max_operators_tables": MAX_TABLES}

    def of(self, handler: Stepwise) -> Stepwise:
        """The same handler, which waits behind its first step for its turn."""

        def steps(connection: Connection, command: Command) -> Steps[Reply]:
            made = handler(connection, command)
            try:
                next(made)  # until here it has read what is asked, and refused what it must
            except StopIteration as stop:
                reply: Reply = stop.value
                return reply
            while self._under_way >= MAX_TABLES:
                yield
            self._under_way += 1
            try:
                return (yield from made)
            finally:
                self._under_way -= 1

        return steps


@dataclass(frozen=True)
class Ground:
    """`saves` saves changed tables off the loop; `announce` tells the name servers of the topics."""

    broker: Broker
    identity: Identity
    look_ups: LookUps
    saves: TableSaves
    announce: Callable[[Callable[[], None]], None] = tell_nobody
    tables: FewTables = field(default_factory=FewTables)

    def in_slices(self, handlers: Mapping[int, Stepwise]) -> dict[int, Handler]:
        """The handlers of requests that may have much to look at."""
        return {code: self.look_ups.stepwise(self.tables.of(handler)) for code, handler in handlers.items()}

    def answer_when_saved(self, connection: Connection, command: Command, reply: bytes) -> None:
        """Answer once all is saved that has changed: what an operator was told is there after a crash."""

        def when_done(error: LaterMQError | None) -> None:
            answer(connection, command, reply if error is None else connection.refuse(command, error))

        self.saves.save([], when_done, len(reply))

    def answer_when_announced(self, connection: Connection, command: Command, works: list[Work]) -> None:
        """Answer once the work is done, all is saved and the name servers know: who asks for the route must find it."""
        self.broker.topics.unannounced = False

        def when_done(error: LaterMQError | None) -> None:
            self.saves.waiting += 1  # for the name servers
            reply = encode_response(command) if error is None else connection.refuse(command, error)
            self.announce(lambda: when_told(reply))

        def when_told(reply: bytes) -> None:
            self.saves.waiting -= 1
            answer(connection, command, reply)

        self.saves.save(works, when_done)


def answer(connection: Connection, command: Command, reply: bytes) -> None:
    """Send a reply that was not ready when its request was served.

    Replies that come at once stop the reading of requests when the peer does not read them; late ones come too late
    for that, so a long one is sent only to a peer that has read what it got before.
    """
    if command.flag & FLAG_ONEWAY:
        return
    if len(reply) > MAX_UNREAD_REPLY_BYTES and connection.is_paused:
        dropped = Busy(
            f"the request was served, but its answer of {len(reply)} bytes was dropped: answers before it are unread",
            hint="Read the answers of one request before making the next",
        )
        reply = connection.refuse(command, dropped)
    connection.send(reply)


def refuse(connection: Connection, command: Command, error: LaterMQError) -> None:
    """Send an error that was not known when the request was served; it is logged as any other."""
    answer(connection, command, connection.refuse(command, error))
