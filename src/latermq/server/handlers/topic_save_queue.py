"""Requests that wait for their topic to be saved. Syncing its file on the loop would block all other clients."""

from collections import deque
from collections.abc import Callable

from latermq.errors import Busy, LaterMQError
from latermq.protocol.remoting.frames import Command
from latermq.server.handlers.async_replies import WhenDone, answer
from latermq.server.remoting.connection import Connection, Lanes
from latermq.server.remoting.sliced_requests import Later

MAX_UNSAVED_BYTES = 64 << 20  # of requests that wait for their topics to be saved
# Above this share, each connection has at most one such request. Its next ones wait unread instead of being refused.
BLOCK_SHARE = 1 / 4
REQUESTS_PER_SLICE = 100  # requests whose topics are saved; then other work has its turn


class TopicSaveQueue:
    """Keeps requests in their clients' order until `save_topics` is done, then serves them again."""

    def __init__(
        self,
        *,
        save_topics: Callable[[WhenDone], None],
        serve: Callable[[Connection, Command], bytes | None],
        on_turn_end: Callable[[], None],
        later: Later,
        max_waiting: int,
    ) -> None:
        self._save_topics = save_topics
        self._serve = serve
        self._on_turn_end = on_turn_end
        self._later = later
        self._max_waiting = max_waiting
        self._waiting: list[tuple[Connection, Command]] = []
        self._waiting_bytes = 0
        self._is_serving = False
        self._failure: LaterMQError | None = None  # set while requests are served again whose topics could not be saved
        self._lanes: dict[Connection, Lanes] = {}  # lanes of the connections with waiting requests

    def __contains__(self, connection: Connection) -> bool:
        """Whether a request of this connection waits. The next request that stores or cancels must not overtake it."""
        return connection in self._lanes

    def add(self, connection: Connection, command: Command) -> None:
        """Serve a request again once its topic is saved."""
        if self._failure is not None:
            raise self._failure
        if len(self._waiting) >= self._max_waiting or self._waiting_bytes >= MAX_UNSAVED_BYTES:
            raise Busy(
                f"{len(self._waiting)} messages are waiting for their topics to be saved", hint="Send again later"
            )
        self._waiting.append((connection, command))
        self._waiting_bytes += command.held_bytes
        if connection not in self._lanes:
            self._lanes[connection] = connection.lanes
            connection.lanes = {}
        if self._waiting_bytes >= MAX_UNSAVED_BYTES * BLOCK_SHARE:
            connection.set_blocked(True)  # until all waiting requests are served
        if len(self._waiting) == 1 and not self._is_serving:
            self._save_topics(self._on_saved)

    def _on_saved(self, error: LaterMQError | None) -> None:
        """Serve the waiting requests in slices. Further requests of their clients wait until all of them are served."""
        saved, self._waiting, self._waiting_bytes = deque(self._waiting), [], 0
        lanes, self._lanes = self._lanes, {}
        self._is_serving = True  # delays further saves: new requests would overtake the waiting ones
        for connection in lanes:
            connection.set_blocked(True)

        def serve_some() -> None:
            # Requests that must wait again, for another topic, are added to the new list and stay in order.
            self._failure = error
            for _ in range(min(REQUESTS_PER_SLICE, len(saved))):
                connection, command = saved.popleft()  # also for closed connections: the request may be one-way
                try:
                    reply = self._serve(connection, command)
                except Exception as failure:
                    reply = connection.refuse(command, failure)
                if reply is not None:
                    answer(connection, command, reply)
            self._failure = None
            self._on_turn_end()
            if saved:
                self._later(serve_some)
            else:
                self._reopen(lanes)

        serve_some()

    def _reopen(self, lanes: dict[Connection, Lanes]) -> None:
        """Resume the connections after all their waiting requests are served."""
        for connection, own in lanes.items():
            if connection in self._lanes:
                self._lanes[connection] = own
            else:
                connection.lanes = own
            connection.set_blocked(False)
        self._is_serving = False
        if self._waiting:
            self._save_topics(self._on_saved)

    def statistics(self) -> dict[str, int]:
        """Requests that wait for their topics to be saved."""
        return {
            "unsaved_requests": len(self._waiting),
            "unsaved_request_bytes": self._waiting_bytes,
            "max_unsaved_request_bytes": MAX_UNSAVED_BYTES,
        }
