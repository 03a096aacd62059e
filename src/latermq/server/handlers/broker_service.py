"""The broker's side of every request that producers and consumers make."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from latermq.broker.broker import Broker
from latermq.broker.messages.answer_room import AnswerRoom
from latermq.broker.messages.retries import Retries
from latermq.broker.tables.topics import UnsavedTopic
from latermq.errors import (
    Busy,
    GroupNotFound,
    IllegalMessage,
    InvalidParameter,
    LaterMQError,
    NoPermission,
    QueryNotFound,
    UnsupportedRequest,
)
from latermq.group.filters import subscription_of
from latermq.group.members import check_client_id
from latermq.message.ids import IPV4_HOST_BYTES
from latermq.message.names import RETRY_PREFIX, retry_topic
from latermq.protocol.remoting.clients import (
    ConsumerIdList,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    UnregisterClientHeader,
    read_heartbeat,
)
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import FLAG_ONEWAY, Command, encode_response
from latermq.protocol.remoting.groups import GroupHeader
from latermq.protocol.remoting.json_body import decode_body, encode_body
from latermq.protocol.remoting.offsets import QueryOffsetHeader, UpdateOffsetHeader
from latermq.protocol.remoting.queues import MessageQueue
from latermq.protocol.remoting.replies import encode_send_reply
from latermq.protocol.remoting.send import SendBackHeader, SendHeader, SendHeaderV2, read_retry, read_send_back
from latermq.server.handlers.admin.ground import Handler, WhenDone, answer
from latermq.server.handlers.notices import tell_group_changed
from latermq.server.handlers.pulls import Pulls
from latermq.server.remoting.connection import Connection, Lane, body_too_long
from latermq.server.remoting.send_lane import SendLane
from latermq.server.remoting.stepwise import Later, LookUps, do_now
from latermq.timer.steps import Steps

_STORING = frozenset({
    Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE, Request.CONSUMER_SEND_MSG_BACK,
    Request.SCHEDULE_ROWS, Request.RECALL_MESSAGE, Request.CANCEL_TIMER, Request.MOVE_TIMER,
})  # fmt: skip
MAX_UNFLUSHED_BYTES = 64 << 20  # of replies that wait for the disk; that to a batch may take 330 kB
MAX_UNSAVED_BYTES = 64 << 20  # of requests that wait for their topics to be saved
# From here on each connection has one such request at most, and its next ones wait unread instead of being refused.
KEEP_BACK_SHARE = 1 / 4
SERVED_AT_ONCE = 100  # of requests whose topics were saved; then others have their turn
_QUEUES_A_STEP = 10  # locked at once: 2 µs each
_IDS_A_STEP = 10  # of clients, encoded at once: up to 3 µs each


def _wait_until_saved() -> None:
    raise UnsavedTopic


class BrokerService:
    """Serves connections out of a Broker. Further handlers (administration) are added to `handlers`."""

    def __init__(
        self,
        broker: Broker,
        *,
        request_flush: Callable[[], None] = lambda: None,
        on_topics_changed: Callable[[], None] = lambda: None,
        on_scheduled: Callable[[], None] = lambda: None,
        between_requests: Callable[[], None] = lambda: None,
        save_topics: Callable[[WhenDone], None] | None = None,
        look_ups: LookUps | None = None,
        later: Later = do_now,
    ) -> None:
        """`save_topics` saves changed tables beside the loop; without it they are saved where a message needs that.

        `later` calls back when others had their turn.
        """
        self._broker = broker
        if look_ups is None:
            look_ups = LookUps(broker.config.timer.max_lookup)
        self._max_body = int(broker.config.server.max_body)
        self._save_topics = save_topics
        self._later = later
        if save_topics is not None:
            broker.save_topic = _wait_until_saved
        # Requests for topics that are being saved, and the lanes of their connections, which are closed meanwhile.
        self._unsaved: list[tuple[Connection, Command]] = []
        self._unsaved_bytes = 0
        self._serves_saved = False
        self._save_failure: LaterMQError | None = None  # while those are served again whose topics could not be saved
        self._closed_lanes: dict[Connection, Lane | None] = {}
        self._retries = Retries(broker)
        self._request_flush = request_flush
        self._on_topics_changed = on_topics_changed
        self._on_scheduled = on_scheduled
        self._between_requests = between_requests
        self._waits_for_flush = broker.config.store.flush == "sync"
        # Who waits for the disk is answered one by one.
        takes_lane = not self._waits_for_flush and len(broker.store_host) == IPV4_HOST_BYTES
        self._lane = SendLane(broker, between_requests) if takes_lane else None
        # Replies of senders that wait for their message to be safe, in the order of the log.
        self._unflushed: deque[tuple[int, Connection, bytes]] = deque()
        self._unflushed_bytes = 0
        # Whoever else wants to hear that the log is safe up to some place, in the same order.
        self._flush_watchers: deque[tuple[int, Callable[[], None]]] = deque()
        self.handlers: dict[int, Handler] = {
            Request.SEND_MESSAGE_V2: self._send,
            Request.SEND_MESSAGE: self._send_long_names,
            Request.SEND_BATCH_MESSAGE: self._send_batch,
            Request.CONSUMER_SEND_MSG_BACK: self._send_back,
            **Pulls(broker).handlers,
            Request.QUERY_CONSUMER_OFFSET: self._query_offset,
            Request.UPDATE_CONSUMER_OFFSET: self._update_offset,
            Request.HEART_BEAT: look_ups.stepwise(self._heartbeat),
            Request.UNREGISTER_CLIENT: self._unregister,
            Request.CHECK_CLIENT_CONFIG: self._check_client,
            Request.GET_CONSUMER_LIST_BY_GROUP: look_ups.stepwise(self._consumer_list),
            Request.LOCK_BATCH_MQ: look_ups.stepwise(self._lock),
            Request.UNLOCK_BATCH_MQ: look_ups.stepwise(self._unlock),
        }

    # What connections call

    def opened(self, connection: Connection) -> None:
        """Nothing is known of a client before its first request, but where it is."""
        if self._lane is not None and len(connection.peer_host) == IPV4_HOST_BYTES:
            connection.lane = self._lane

    def serve(self, connection: Connection, command: Command) -> bytes | None:
        self._between_requests()
        handler = self.handlers.get(command.code)
        if handler is None:
            raise UnsupportedRequest(
                f"request code {command.code} is not supported", hint="docs/protocol.md lists those that are"
            )
        if len(command.body) > self._max_body and command.code not in _STORING:
            raise body_too_long(command, self._max_body)
        if connection in self._closed_lanes and command.code in _STORING:
            # What a client stores or takes behind a message that waits for its topic must not overtake it.
            self._serve_when_saved(connection, command)
            return None
        try:
            reply = handler(connection, command)
        except UnsavedTopic:
            self._serve_when_saved(connection, command)
            return None
        if reply is None:
            command.release()  # whoever answers it later need not keep what may be 16 MiB
        return reply

    def _serve_when_saved(self, connection: Connection, command: Command) -> None:
        """Serve a request again once its topic is saved: syncing a file would stop everyone else meanwhile."""
        assert self._save_topics is not None, "nobody else raises UnsavedTopic"
        if self._save_failure is not None:
            raise self._save_failure
        is_full = len(self._unsaved) >= self._broker.config.broker.max_unflushed
        if is_full or self._unsaved_bytes >= MAX_UNSAVED_BYTES:
            raise Busy(f"{len(self._unsaved)} messages wait for their topics to be saved", hint="Send again later")
        self._unsaved.append((connection, command))
        self._unsaved_bytes += command.held_bytes
        if connection not in self._closed_lanes:
            self._closed_lanes[connection] = connection.lane
            connection.lane = None
        if self._unsaved_bytes >= MAX_UNSAVED_BYTES * KEEP_BACK_SHARE:
            connection.keep_back(True)  # until all of these are served
        if len(self._unsaved) == 1 and not self._serves_saved:
            self._save_topics(self._topics_saved)

    def _topics_saved(self, error: LaterMQError | None) -> None:
        """Serve what waited, a slice at a time; what its clients ask for next waits until all of it is served."""
        saved, self._unsaved, self._unsaved_bytes = deque(self._unsaved), [], 0
        lanes, self._closed_lanes = self._closed_lanes, {}
        self._serves_saved = True  # and saves for nobody else: what comes now would overtake what waits
        for connection in lanes:
            connection.keep_back(True)

        def serve_some() -> None:
            # Those that must wait once more, for another topic, gather in the new list and stay in order there.
            self._save_failure = error
            for _ in range(min(SERVED_AT_ONCE, len(saved))):
                connection, command = saved.popleft()  # of senders too that have gone: they may have sent one-way
                try:
                    reply = self.serve(connection, command)
                except Exception as failure:
                    reply = connection.refuse(command, failure)
                if reply is not None:
                    answer(connection, command, reply)
            self._save_failure = None
            self.settled()
            if saved:
                self._later(serve_some)
                return
            for connection, lane in lanes.items():
                if connection in self._closed_lanes:
                    self._closed_lanes[connection] = lane
                else:
                    connection.lane = lane
                connection.keep_back(False)
            self._serves_saved = False
            if self._unsaved and self._save_topics is not None:
                self._save_topics(self._topics_saved)

        serve_some()

    def settled(self) -> None:
        if self._unflushed:
            self._request_flush()
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

    def flushed(self, offset: int) -> None:
        """The log is safe up to here: answer who waited for it."""
        unflushed = self._unflushed
        while unflushed and unflushed[0][0] <= offset:
            _, connection, reply = unflushed.popleft()
            self._unflushed_bytes -= len(reply)
            connection.send(reply)
        while self._flush_watchers and self._flush_watchers[0][0] <= offset:
            self._flush_watchers.popleft()[1]()

    def notify(self, groups: set[str]) -> None:
        """Tell the members of these groups that the group changed, so that they rebalance now."""
        for name in groups:
            config = self._broker.groups.find(name)
            if config is None or config.notifies_members:
                tell_group_changed(self._broker.notices, name)

    # Sending

    def _send(self, connection: Connection, command: Command) -> bytes | None:
        return self._store(connection, command, command.header(SendHeaderV2))

    def _send_long_names(self, connection: Connection, command: Command) -> bytes | None:
        return self._store(connection, command, command.header(SendHeader))

    def _send_batch(self, connection: Connection, command: Command) -> bytes | None:
        header = command.header(SendHeaderV2)
        header.batch = True
        return self._store(connection, command, header)

    def _store(self, connection: Connection, command: Command, header: SendHeaderV2 | SendHeader) -> bytes | None:
        if self._unflushed:
            self.check_unflushed()
        if header.batch:
            if header.topic.startswith(RETRY_PREFIX):
                raise IllegalMessage(f"a batch cannot go to {header.topic!r}", hint="Retries are sent one by one")
            sent = self._broker.send_batch(
                header.topic,
                header.queueId,
                command.body,
                header.bornTimestamp,
                connection.peer_host,
                sysflag=header.sysFlag,
                reconsume_times=header.reconsumeTimes,
                default_topic=header.defaultTopic,
                default_queues=header.defaultTopicQueueNums,
            )
        elif header.topic.startswith(RETRY_PREFIX):
            sent = self._retries.send(read_retry(header, command.version), command.body, connection.peer_host)
        else:
            sent = self._broker.send(
                header.topic,
                header.queueId,
                command.body,
                header.properties,
                header.bornTimestamp,
                connection.peer_host,
                header.flag,
                header.sysFlag,
                header.reconsumeTimes,
                header.defaultTopic,
                header.defaultTopicQueueNums,
            )
        message_id, queue_id, queue_offset, end_offset, handle = sent
        reply = encode_send_reply(command, message_id, queue_id, queue_offset, handle)
        if not self._waits_for_flush or command.flag & FLAG_ONEWAY:
            return reply
        self._answer_at(end_offset, connection, reply)
        return None

    def _send_back(self, connection: Connection, command: Command) -> bytes | None:
        """A consumer gives back what it could not handle."""
        end_offset = self._retries.send_back(
            read_send_back(command.header(SendBackHeader), command.version), connection.peer_host
        )
        reply = encode_response(command)
        if not end_offset or not self._waits_for_flush or command.flag & FLAG_ONEWAY:
            return reply
        self._answer_at(end_offset, connection, reply)
        return None

    def reply_when_flushed(self, connection: Connection, command: Command, reply: bytes) -> bytes | None:
        """The reply itself if it may go now; None where it is sent once the log is safe up to its present end."""
        log = self._broker.store.log
        if not self._waits_for_flush or command.flag & FLAG_ONEWAY or log.flushed >= log.end:
            return reply
        self._answer_at(log.end, connection, reply)
        return None

    def _answer_at(self, end_offset: int, connection: Connection, reply: bytes) -> None:
        """Keep a reply until the log is flushed up to this offset."""
        self._unflushed.append((end_offset, connection, reply))
        self._unflushed_bytes += len(reply)

    def when_flushed(self, then: Callable[[], None]) -> None:
        """Call back once the log is safe up to its present end, however it is flushed otherwise."""
        log = self._broker.store.log
        if log.flushed >= log.end:
            then()
            return
        if len(self._flush_watchers) >= self._broker.config.broker.max_unflushed:
            raise Busy(f"{len(self._flush_watchers)} requests wait for the disk", hint="Ask again later")
        self._flush_watchers.append((log.end, then))
        self._request_flush()

    def statistics(self) -> dict[str, int]:
        """What waits for the disk."""
        return {
            "unflushed_replies": len(self._unflushed),
            "unflushed_bytes": self._unflushed_bytes,
            "max_unflushed_bytes": MAX_UNFLUSHED_BYTES,
            "unsaved_requests": len(self._unsaved),
            "unsaved_request_bytes": self._unsaved_bytes,
            "max_unsaved_request_bytes": MAX_UNSAVED_BYTES,
        }

    def check_unflushed(self) -> None:
        """With sync flush on a disk that hangs, answers pile up: at the bound nothing more is taken."""
        is_full = len(self._unflushed) >= self._broker.config.broker.max_unflushed
        if is_full or self._unflushed_bytes >= MAX_UNFLUSHED_BYTES:
            raise Busy(
                f"{len(self._unflushed)} messages wait for the disk", hint="The disk is slow or hangs; send again later"
            )

    # Offsets

    def _query_offset(self, connection: Connection, command: Command) -> bytes:
        header = command.header(QueryOffsetHeader)
        offset = self._broker.committed_offset(
            header.consumerGroup, header.topic, header.queueId, zero_if_new=header.setZeroIfNotFound is not False
        )
        if offset < 0:
            raise QueryNotFound(
                f"group {header.consumerGroup!r} has no offset in queue {header.queueId} of topic {header.topic!r}"
            )
        return encode_response(command, fields={"offset": str(offset)})

    def _update_offset(self, connection: Connection, command: Command) -> bytes:
        header = command.header(UpdateOffsetHeader)
        self._broker.commit_offset(
            header.consumerGroup, header.topic, header.queueId, header.commitOffset, connection.peer_host
        )
        return encode_response(command)

    # Clients and their groups

    def _heartbeat(self, connection: Connection, command: Command) -> Steps[bytes | None]:
        broker = self._broker
        if len(command.body) > broker.config.broker.max_heartbeat:
            raise InvalidParameter(
                f"the heartbeat has {len(command.body)} bytes, the limit is {int(broker.config.broker.max_heartbeat)}",
                hint="Split the client's groups over several clients, or raise broker.max_heartbeat",
            )
        beat = read_heartbeat(decode_body(command.body, HeartbeatData))
        language = command.language  # of a request that takes several slices nothing is kept
        broker.members.check(connection, beat, language)
        for consumer in beat.consumers:
            for subscription in consumer.subscriptions:
                broker.filters.check(subscription)
                yield
        known = []
        refusal: NoPermission | None = None
        for consumer in beat.consumers:
            yield
            # One group that may not be made is no reason to refuse the client's others.
            try:
                group = broker.groups.require(consumer.group, connection.peer_host)
                known.append(consumer)
                if group.retry_queues > 0:
                    # Before anything is sent back: a client looks for it when it starts, and then at each rebalance.
                    broker.topics.make_retry(retry_topic(consumer.group), group.retry_queues, connection.peer_host)
            except GroupNotFound:
                continue
            except NoPermission as error:
                refusal = error
        if connection.is_closing:  # meanwhile: nobody would take it out again
            return None
        broker.members.check(connection, beat, language)  # others may have come meanwhile
        beat.consumers = known
        changed = broker.members.heartbeat(
            connection, beat, language=language, version=command.version, clock=broker.client_clock
        )
        self.notify(changed)
        if refusal is not None:
            raise refusal
        return encode_response(command)

    def _unregister(self, connection: Connection, command: Command) -> bytes:
        header = command.header(UnregisterClientHeader)
        changed = self._broker.members.unregister(
            header.clientID, producer_group=header.producerGroup, consumer_group=header.consumerGroup
        )
        self.notify(changed)
        return encode_response(command)

    def _check_client(self, connection: Connection, command: Command) -> bytes:
        """A client asks before it subscribes whether its expression parses."""
        body = decode_body(command.body, dict[str, object])
        subscription = body.get("subscriptionData")
        if isinstance(subscription, dict):
            self._broker.filters.of(
                subscription_of(
                    str(subscription.get("topic") or ""),
                    str(subscription.get("subString") or ""),
                    str(subscription.get("expressionType") or ""),
                )
            )
        return encode_response(command)

    def _consumer_list(self, connection: Connection, command: Command) -> Steps[bytes | None]:
        name = command.header(GroupHeader).consumerGroup
        group = self._broker.members.consumer_group(name)
        if group is None:
            raise GroupNotFound(f"consumer group {name!r} has no connected member")
        room = AnswerRoom(self._broker.config)
        client_ids = list(group.members)
        for at in range(0, len(client_ids), _IDS_A_STEP):
            room.take(len(encode_body(client_ids[at : at + _IDS_A_STEP])))
            yield
        return encode_response(command, body=encode_body(ConsumerIdList(consumerIdList=client_ids)))

    def _lock(self, connection: Connection, command: Command) -> Steps[bytes | None]:
        request = decode_body(command.body, LockBatchRequest)
        group = self._broker.groups.require(request.consumerGroup, connection.peer_host).name
        check_client_id(request.clientId)
        name = self._broker.config.broker.name
        locked: list[MessageQueue] = []
        for some in _in_parts(request.mqSet):
            queues = [(queue.topic, queue.queueId) for queue in some if self._exists(queue)]
            held = self._broker.locks.lock(group, request.clientId, queues)
            locked += [MessageQueue(topic, name, queue_id) for topic, queue_id in held]
            yield
        return encode_response(command, body=encode_body(LockBatchResponse(lockOKMQSet=locked)))

    def _exists(self, queue: MessageQueue) -> bool:
        topic = self._broker.topics.find(queue.topic)
        return topic is not None and 0 <= queue.queueId < max(topic.read_queues, topic.write_queues)

    def _unlock(self, connection: Connection, command: Command) -> Steps[bytes | None]:
        request = decode_body(command.body, LockBatchRequest)
        for some in _in_parts(request.mqSet):
            queues = [(queue.topic, queue.queueId) for queue in some]
            self._broker.locks.unlock(request.consumerGroup, request.clientId, queues)
            yield
        return encode_response(command)


def _in_parts(queues: Sequence[MessageQueue]) -> Iterator[Sequence[MessageQueue]]:
    return (queues[at : at + _QUEUES_A_STEP] for at in range(0, len(queues), _QUEUES_A_STEP))
