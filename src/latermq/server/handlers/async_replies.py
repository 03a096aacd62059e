"""Replies that are not ready when their request is served, and the work off the loop that they wait for."""

from collections.abc import Callable

from latermq.broker.tables.table_saver import run_all
from latermq.errors import Busy, LaterMQError
from latermq.protocol.remoting.frames import FLAG_ONEWAY, Command
from latermq.server.remoting.connection import Connection

Work = Callable[[], None]
WhenDone = Callable[[LaterMQError | None], None]
RunOffLoop = Callable[[list[Work], WhenDone], None]

MAX_UNREAD_REPLY_BYTES = 4096  # largest late reply to a peer that has unread data pending


def run_inline(works: list[Work], when_done: WhenDone) -> None:
    """Do the work synchronously, for callers in which nothing else needs the thread."""
    try:
        run_all(works)
    except LaterMQError as error:
        when_done(error)
    else:
        when_done(None)


def answer(connection: Connection, command: Command, reply: bytes) -> None:
    """Send a reply that was not ready when its request was served.

    If a peer does not read immediate replies, the server stops reading its requests. That does not limit late replies,
    so a long one is sent only to a peer that has read the earlier ones.
    """
    if command.flag & FLAG_ONEWAY:
        return
    if len(reply) > MAX_UNREAD_REPLY_BYTES and connection.is_paused:
        dropped = Busy(
            f"the request was served, but its reply of {len(reply)} bytes was dropped: earlier replies are unread",
            hint="Read the reply to a request before sending the next request",
        )
        reply = connection.refuse(command, dropped)
    connection.send(reply)


def refuse(connection: Connection, command: Command, error: LaterMQError) -> None:
    """Send an error that was not known when the request was served. It is logged like any other."""
    answer(connection, command, connection.refuse(command, error))
