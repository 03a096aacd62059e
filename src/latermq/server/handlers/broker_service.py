"""The broker's service for connections: the requests of producers and consumers, and the work around each request.

Other modules add further requests (administration, timers, the pipeline) to `table`.
"""

from collections.abc import Callable

from latermq.broker.broker import Broker
from latermq.broker.tables.topics import UnsavedTopic
from latermq.message.ids import IPV4_HOST_BYTES
from latermq.protocol.remoting.frames import Command
from latermq.server.handlers.consumers import ConsumerRequests
from latermq.server.handlers.flush_waits import FlushWaits
from latermq.server.handlers.late_replies import WhenDone
from latermq.server.handlers.messages import SendRequests
from latermq.server.handlers.notices import tell_group_changed
from latermq.server.handlers.pulls import PullRequests
from latermq.server.handlers.topic_waits import TopicWaits
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import RequestTable
from latermq.server.remoting.send_lane import SendLane
from latermq.server.remoting.stepwise import Later, SlicedRequests, call_now


class BrokerService:
    """Serves connections from a Broker."""

    def __init__(
        self,
        broker: Broker,
        *,
        request_flush: Callable[[], None] = lambda: None,
        on_topics_changed: Callable[[], None] = lambda: None,
        on_scheduled: Callable[[], None] = lambda: None,
        between_requests: Callable[[], None] = lambda: None,
        save_topics: Callable[[WhenDone], None] | None = None,
        sliced: SlicedRequests | None = None,
        later: Later = call_now,
    ) -> None:
        """`save_topics` saves changed tables off the loop, for a broker that `defers_topic_saves`.

        `later` calls back after other work has had its turn.
        """
        self._broker = broker
        self._on_topics_changed = on_topics_changed
        self._on_scheduled = on_scheduled
        self._between_requests = between_requests
        self.flush_waits = FlushWaits(broker, request_flush)
        self._topic_waits: TopicWaits | None = None
        if save_topics is not None:
            self._topic_waits = TopicWaits(
                save_topics=save_topics,
                serve=self.serve,
                settled=self.settled,
                later=later,
                max_waiting=broker.config.broker.max_unflushed,
            )
        config = broker.config
        self.table = RequestTable(
            int(config.server.max_body), sliced if sliced is not None else SlicedRequests(config.timer.max_lookup)
        )
        self.table.add(SendRequests(broker, self.flush_waits).endpoints)
        self.table.add(PullRequests(broker).endpoints)
        self.table.add(ConsumerRequests(broker, self.notify).endpoints)
        # Replies that wait for the disk are sent one by one.
        takes_lane = not self.flush_waits.is_sync and len(broker.store_host) == IPV4_HOST_BYTES
        self._lane = (
            SendLane(
                broker.writer,
                broker.writable_topics,
                broker.store.queues,
                broker.admission,
                broker.clock,
                self.table,
                between_requests,
            )
            if takes_lane
            else None
        )

    def opened(self, connection: Connection) -> None:
        """Assign the send lane. Before the first request only the client's address is known."""
        if self._lane is not None and len(connection.peer_host) == IPV4_HOST_BYTES:
            connection.lane = self._lane

    def serve(self, connection: Connection, command: Command) -> bytes | None:
        self._between_requests()
        endpoint = self.table.find(command)
        waits = self._topic_waits
        if waits is not None and endpoint.stores and connection in waits:
            waits.add(connection, command)
            return None
        try:
            reply = self.table.answer(endpoint, connection, command)
        except UnsavedTopic:
            assert waits is not None, "nobody else raises UnsavedTopic"
            waits.add(connection, command)
            return None
        if reply is None:
            command.release()  # the later reply does not need the request, which may take 16 MiB
        return reply

    def settled(self) -> None:
        self.flush_waits.settled()
        if self._broker.topics.unannounced:
            self._broker.topics.unannounced = False
            self._on_topics_changed()
        if self._broker.timers.noted:
            self._on_scheduled()
        self._broker.settle()

    def caught_up(self, connection: Connection) -> None:
        self._broker.notices.caught_up(connection)
        self._broker.waiting.caught_up(connection)

    def closed(self, connection: Connection) -> None:
        self._broker.notices.closed(connection)
        self._broker.waiting.remove_client(connection)
        self.notify(self._broker.members.disconnected(connection))

    def notify(self, groups: set[str]) -> None:
        """Notify the members of these groups that the group changed, so that they rebalance now."""
        for name in groups:
            config = self._broker.groups.find(name)
            if config is None or config.notifies_members:
                tell_group_changed(self._broker.notices, name)

    def statistics(self) -> dict[str, int]:
        """Requests and replies that wait for the disk."""
        waits = self._topic_waits
        return self.flush_waits.statistics() | (waits.statistics() if waits is not None else {})
