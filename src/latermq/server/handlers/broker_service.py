"""The broker's service for connections: finds the handler of a request in `table`, and does the work around it."""

from collections.abc import Callable

from latermq.broker.messages.long_polling import WaitingPulls
from latermq.broker.notifications import Notices
from latermq.broker.pop.waiting_pops import WaitingPops
from latermq.broker.tables.topics import Topics, UnsavedTopic
from latermq.group.members import Members
from latermq.message.ids import IPV4_HOST_BYTES
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.pop import AckRequest
from latermq.protocol.remoting.send import SendRequest
from latermq.server.handlers.ack_lane import AckLane
from latermq.server.handlers.async_replies import WhenDone
from latermq.server.handlers.flush_queue import FlushQueue
from latermq.server.handlers.notices import GroupChanges
from latermq.server.handlers.pop_replies import PopReplies
from latermq.server.handlers.topic_save_queue import TopicSaveQueue
from latermq.server.remoting.connection import Connection, Lanes
from latermq.server.remoting.endpoints import RequestTable
from latermq.server.remoting.send_lane import SendLane
from latermq.server.remoting.sliced_requests import Later, call_now
from latermq.timer.service import TimerService


class BrokerService:
    """Serves connections, and does what is left to do after their requests."""

    def __init__(
        self,
        table: RequestTable,
        send_lane: SendLane | None,
        ack_lane: AckLane,
        flush_queue: FlushQueue,
        group_changes: GroupChanges,
        topics: Topics,
        timers: TimerService,
        waiting_pulls: WaitingPulls,
        members: Members,
        notices: Notices,
        waiting_pops: WaitingPops,
        pop_replies: PopReplies,
        *,
        max_waiting: int,
        on_topics_changed: Callable[[], None] = lambda: None,
        on_scheduled: Callable[[], None] = lambda: None,
        between_requests: Callable[[], None] = lambda: None,
        save_topics: Callable[[WhenDone], None] | None = None,
        later: Later = call_now,
    ) -> None:
        """`save_topics` saves changed tables off the loop, for a broker that `defers_topic_saves`.

        At most `max_waiting` requests wait for it. `later` calls back after other work has had its turn.
        """
        self.table = table
        self.on_lost: list[Callable[[Connection], None]] = []  # parts that are added later, with their requests
        self._lanes_v6: Lanes = {AckRequest: ack_lane}
        self._lanes: Lanes = self._lanes_v6 if send_lane is None else {SendRequest: send_lane, **self._lanes_v6}
        self.flush_queue = flush_queue
        self.group_changes = group_changes
        self._topics = topics
        self._timers = timers
        self._waiting_pulls = waiting_pulls
        self._members = members
        self._notices = notices
        self._waiting_pops = waiting_pops
        self.pop_replies = pop_replies
        self._on_topics_changed = on_topics_changed
        self._on_scheduled = on_scheduled
        self._between_requests = between_requests
        self._topic_save_queue: TopicSaveQueue | None = None
        if save_topics is not None:
            self._topic_save_queue = TopicSaveQueue(
                save_topics=save_topics,
                serve=self.serve,
                on_turn_end=self.on_turn_end,
                later=later,
                max_waiting=max_waiting,
            )

    def on_connect(self, connection: Connection) -> None:
        """Assign the lanes. Before the first request only the client's address is known."""
        connection.lanes = self._lanes if len(connection.peer_host) == IPV4_HOST_BYTES else self._lanes_v6

    def serve(self, connection: Connection, command: Command) -> bytes | None:
        self._between_requests()
        endpoint = self.table.find(connection, command)
        save_queue = self._topic_save_queue
        if save_queue is not None and endpoint.stores and connection in save_queue:
            save_queue.add(connection, command)
            return None
        try:
            reply = self.table.answer(endpoint, connection, command)
        except UnsavedTopic:
            assert save_queue is not None, "only sends raise UnsavedTopic"
            self.table.repeated(-1)  # it is checked again, and counted then
            save_queue.add(connection, command)
            return None
        if reply is None:
            command.release()  # the later reply does not need the request, which may take 16 MiB
        return reply

    def on_turn_end(self) -> None:
        self.flush_queue.on_turn_end()
        if self._topics.needs_registration:
            self._topics.needs_registration = False
            self._on_topics_changed()
        if self._timers.noted:
            self._on_scheduled()
        self._waiting_pulls.wake()

    def on_drained(self, connection: Connection) -> None:
        self._notices.on_drained(connection)
        self._waiting_pulls.on_drained(connection)
        self._waiting_pops.on_drained(connection)

    def on_disconnect(self, connection: Connection) -> None:
        self._notices.on_disconnect(connection)
        self._waiting_pulls.remove_client(connection)
        self._waiting_pops.remove_client(connection)
        self.pop_replies.on_disconnect(connection)
        for forget in self.on_lost:
            forget(connection)
        self.group_changes.notify(self._members.disconnected(connection))

    def statistics(self) -> dict[str, int]:
        """Requests and replies that wait for the disk."""
        save_queue = self._topic_save_queue
        return {
            **self.flush_queue.statistics(),
            **self.pop_replies.statistics(),
            **(save_queue.statistics() if save_queue is not None else {}),
        }
