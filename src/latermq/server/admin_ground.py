"""What all administration handlers stand on: the broker, its work beside the loop, and answers that come later."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from latermq.broker.admin_runtime import Identity
from latermq.broker.broker import Broker
from latermq.broker.tables import do_all
from latermq.errors import LaterMQError
from latermq.protocol.remoting.frames import FLAG_ONEWAY, Command, encode_response
from latermq.server.connection import Connection
from latermq.server.look_ups import LookUps, Stepwise

Handler = Callable[[Connection, Command], bytes | None]
Work = Callable[[], None]
WhenDone = Callable[[LaterMQError | None], None]


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


@dataclass(frozen=True)
class Ground:
    """`beside` does work that blocks, in order, off the loop; `announce` tells the name servers of the topics."""

    broker: Broker
    identity: Identity
    look_ups: LookUps
    beside: Callable[[list[Work], WhenDone], None] = do_at_once
    announce: Callable[[Callable[[], None]], None] = tell_nobody

    def in_slices(self, handlers: Mapping[int, Stepwise]) -> dict[int, Handler]:
        """The handlers of requests that may have much to look at."""
        return {code: self.look_ups.stepwise(handler) for code, handler in handlers.items()}

    def answer_when_saved(self, connection: Connection, command: Command, works: list[Work], reply: bytes) -> None:
        """Answer once the work is done: what an operator was told is there after a crash."""

        def when_done(error: LaterMQError | None) -> None:
            answer(connection, command, reply if error is None else _refusal(command, error))

        self.beside(works, when_done)

    def answer_when_announced(self, connection: Connection, command: Command, works: list[Work]) -> None:
        """Answer once the work is done and the name servers know: who asks for the route next must find it."""
        self.broker.topics.unannounced = False

        def when_done(error: LaterMQError | None) -> None:
            reply = encode_response(command) if error is None else _refusal(command, error)
            self.announce(lambda: answer(connection, command, reply))

        self.beside(works, when_done)


def answer(connection: Connection, command: Command, reply: bytes) -> None:
    """Send a reply that was not ready when its request was served."""
    if not command.flag & FLAG_ONEWAY:
        connection.send(reply)


def refuse(connection: Connection, command: Command, error: LaterMQError) -> None:
    """Send an error that was not known when the request was served."""
    answer(connection, command, _refusal(command, error))


def _refusal(command: Command, error: LaterMQError) -> bytes:
    return encode_response(command, error.code, remark=error.remark)
