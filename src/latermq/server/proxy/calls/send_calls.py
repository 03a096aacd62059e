"""SendMessage and RecallMessage.

Each message is one send request to a broker. All requests of one turn of the event loop are written together, so
messages cost no more than in a batch, and each has its own result.
"""

from collections.abc import Callable
from itertools import count
from typing import Annotated

from msgspec import Meta, Struct

from latermq.client.producer.outgoing import SendFrames
from latermq.client.session.credentials import Credentials
from latermq.client.session.failures import NoBroker
from latermq.clock import Clock
from latermq.config import Config
from latermq.errors import IllegalOperation, LaterMQError
from latermq.message.recall_handle import decode_recall_handle
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.checked_names import check_topic_name
from latermq.protocol.messaging.encoded_answers import stored_answer
from latermq.protocol.messaging.encoded_fields import check_counts
from latermq.protocol.messaging.plain_messages import plain_message
from latermq.protocol.messaging.queue_choice import queue_of_group
from latermq.protocol.messaging.refusals import CallRefused
from latermq.protocol.messaging.resources import full_name
from latermq.protocol.messaging.sent_messages import SendLimits, SentMessage, sent_message
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import JSON, Command
from latermq.protocol.remoting.queues import MessageQueue
from latermq.server.proxy.brokers.broker_link import BrokerLink, error_of, header_of
from latermq.server.proxy.brokers.topics import TopicInfo, Topics
from latermq.server.proxy.calls.call_table import CallEndpoint, Exchange, on_topic
from latermq.server.proxy.statuses import OK, combined
from latermq.server.remoting.access import PUB, Kind, Rule, topic_access

# As long as a handle can be in this protocol: a unique key may be nearly as long as all properties of a record.
MAX_HANDLE_CHARS = 50_000
MIXED = "MIXED"
_TYPE_NAMES: dict[int, str] = {
    pb.NORMAL: "NORMAL", pb.FIFO: "FIFO", pb.DELAY: "DELAY", pb.TRANSACTION: "TRANSACTION",
}  # fmt: skip
_TRANSACTION: int = pb.TRANSACTION

Result = pb.SendResultEntry | LaterMQError


class SendReply(Struct, kw_only=True, gc=False):
    """The header of the reply to a send."""

    queueOffset: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    recallHandle: str = ""


class _Target:
    """Where messages to one topic go."""

    __slots__ = ("accesses", "frames", "info", "queues", "turn")

    def __init__(self, info: TopicInfo, default_queues: int, credentials: Credentials | None) -> None:
        self.info = info
        self.queues: list[MessageQueue] = info.route.writable
        # RocketMQ's proxy uses the topic as the producer group too: check-backs go to any producer of the topic.
        self.frames = SendFrames(info.topic, info.topic, default_queues, JSON, credentials)
        self.accesses = (topic_access(info.topic, (PUB,)),)
        self.turn = count().__next__


class SendCalls:
    """The calls of producers about messages."""

    def __init__(self, link: BrokerLink, topics: Topics, config: Config, clock: Clock) -> None:
        self._link = link
        self._topics = topics
        self._clock = clock
        proxy = config.proxy
        self._limits = SendLimits(
            body_bytes=config.broker.max_message,
            user_properties=proxy.max_user_properties,
            user_properties_bytes=proxy.max_user_properties_size,
            keys=proxy.max_keys,
            message_group_bytes=proxy.max_message_group,
            recovery_s=proxy.max_recovery // 1000,
        )
        self._max_messages = proxy.max_send_messages
        self._default_queues = config.broker.default_queues
        self._max_targets = config.proxy.max_routes
        self._targets: dict[str, _Target] = {}

    @property
    def endpoints(self) -> list[CallEndpoint]:
        topics = Rule(Kind.TOPIC, (PUB,), lambda _, request: self._topic_names(request))
        return [
            CallEndpoint(
                "SendMessage",
                pb.SendMessageRequest,
                pb.SendMessageResponse,
                self._send,
                (topics,),
                shortcut=self._send_plain,
                check=lambda data: check_counts(data, self._max_messages, self._limits.user_properties),
            ),
            CallEndpoint(
                "RecallMessage",
                pb.RecallMessageRequest,
                pb.RecallMessageResponse,
                self._recall,
                (on_topic("topic", PUB),),
            ),
        ]

    def statistics(self) -> dict[str, int]:
        return {"send_topics": len(self._targets)}

    # SendMessage

    def _send(self, exchange: Exchange, request: pb.SendMessageRequest) -> None:
        messages = self._messages(request)
        if not messages:
            raise CallRefused(pb.MESSAGE_CORRUPTED, "the request has no message")
        topic = full_name(messages[0].topic)
        if len(messages) > 1 and any(full_name(message.topic) != topic for message in messages):
            raise CallRefused(pb.MESSAGE_CORRUPTED, "the messages of a request must have the same topic")
        info = self._topics.cached(topic)
        if info is not None:
            self._send_to(exchange, messages, info)
            return
        check_topic_name(topic)

        def then(found: TopicInfo | LaterMQError) -> None:
            try:
                if isinstance(found, LaterMQError):
                    raise found
                self._send_to(exchange, messages, found)
            except LaterMQError as error:
                exchange.fail(error)

        self._topics.get(topic, then)

    def _topic_names(self, request: pb.SendMessageRequest) -> list[str]:
        return list({full_name(message.topic): None for message in self._messages(request)})

    def _messages(self, request: pb.SendMessageRequest) -> list[pb.Message]:
        """Return the messages of a request, unless they are too many: four million would take 15 s and 700 MB."""
        count = len(request.messages)
        if count > self._max_messages:
            raise CallRefused(
                pb.PAYLOAD_TOO_LARGE, f"the request has {count} messages; the limit is {self._max_messages}"
            )
        return list(request.messages)

    def _send_plain(self, exchange: Exchange, data: bytes) -> bool:
        """Send the message of a usual request to a topic that was used before."""
        one = plain_message(data, self._limits)
        if one is None:
            return False
        info, target = self._topics.cached(one.topic), self._targets.get(one.topic)
        if target is None or target.info is not info:
            return False
        exchange.authorize(target.accesses)
        if target.info.message_type != MIXED:
            _check_type(one, target.info)
        self._request(target, one, self._only_result(exchange, one))
        return True

    def _send_to(self, exchange: Exchange, messages: list[pb.Message], info: TopicInfo) -> None:
        topic = info.topic
        target = self._targets.get(topic)
        if target is None or target.info is not info:
            target = self._new_target(info)
        now_ms, limits, peer = self._clock.now_ms(), self._limits, exchange.call.connection.peer[0]
        if len(messages) == 1:
            one = sent_message(messages[0], topic, peer, now_ms, limits)
            if info.message_type != MIXED:
                _check_type(one, info)
            self._request(target, one, self._only_result(exchange, one))
            return
        sent = [sent_message(message, topic, peer, now_ms, limits) for message in messages]
        for one in sent:
            _check_type(one, info)
        results = _Results(exchange, [one.message_id for one in sent])
        for place, one in enumerate(sent):
            self._request(target, one, self._result(one, results, place))

    def _new_target(self, info: TopicInfo) -> _Target:
        check_topic_name(info.topic)  # its route may have been asked for, even if clients may not use it
        self._targets.pop(info.topic, None)
        if len(self._targets) >= self._max_targets:
            del self._targets[next(iter(self._targets))]
        target = self._targets[info.topic] = _Target(info, self._default_queues, self._link.credentials)
        return target

    def _request(
        self, target: _Target, one: SentMessage, on_response: Callable[[Command | LaterMQError], None]
    ) -> None:
        queue = self._queue(target, one.message_group)
        opaque = self._link.next_opaque()
        frame = target.frames.frame(opaque, queue.queueId, one.sysflag, one.born_ms, 0, one.properties, one.body)
        self._link.send(queue.brokerName, opaque, frame, on_response)

    def _queue(self, target: _Target, group: str) -> MessageQueue:
        """Choose a queue: always the same for a message group, else the next one whose broker is reachable."""
        queues = target.queues
        if not queues:
            raise CallRefused(pb.FORBIDDEN, f"topic {target.info.topic!r} has no writable queue")
        if group:
            return queues[queue_of_group(group, len(queues))]
        is_open = self._link.is_open
        for _ in queues:
            queue = queues[target.turn() % len(queues)]
            if is_open(queue.brokerName):
                break
        return queue

    def _only_result(self, exchange: Exchange, one: SentMessage) -> Callable[[Command | LaterMQError], None]:
        def on_response(response: Command | LaterMQError) -> None:
            try:
                reply = self._reply(response, one)
            except LaterMQError as error:
                exchange.fail(error)
                return
            if one.kind == _TRANSACTION or reply.recallHandle:
                entry = _entry(one, reply)
                exchange.reply(pb.SendMessageResponse(status=OK, entries=[entry]))
            else:
                exchange.call.reply(stored_answer(one.message_id, reply.queueOffset))

        return on_response

    def _result(self, one: SentMessage, results: "_Results", place: int) -> Callable[[Command | LaterMQError], None]:
        def on_response(response: Command | LaterMQError) -> None:
            try:
                results.put(place, _entry(one, self._reply(response, one)))
            except LaterMQError as error:
                results.put(place, error)

        return on_response

    def _reply(self, response: Command | LaterMQError, one: SentMessage) -> SendReply:
        """Return where a message was stored. Raises the error if it was not, or perhaps not."""
        if isinstance(response, LaterMQError):
            raise response
        if not response.code:
            return header_of(response, SendReply)
        if response.code in (Response.TOPIC_NOT_EXIST, Response.NO_PERMISSION):
            self._topics.refresh(one.topic)
        if response.code == Response.MESSAGE_ILLEGAL and one.delivery_ms is not None:
            # Everything else is checked here, so the broker refuses the time.
            raise CallRefused(pb.ILLEGAL_DELIVERY_TIME, response.remark or "the delivery time is too far ahead")
        if response.code == Response.SYSTEM_ERROR and one.delivery_ms is not None:
            # The broker has no other code for too many timers, in all or in one second.
            raise CallRefused(pb.TOO_MANY_REQUESTS, response.remark or "too many timers are pending")
        raise error_of(response)

    # RecallMessage

    def _recall(self, exchange: Exchange, request: pb.RecallMessageRequest) -> None:
        topic = full_name(request.topic)
        check_topic_name(topic)
        if len(request.recall_handle) > MAX_HANDLE_CHARS:
            raise CallRefused(pb.BAD_REQUEST, "the recall handle is too long")
        try:
            handle = decode_recall_handle(request.recall_handle)
        except IllegalOperation as error:
            raise CallRefused(pb.BAD_REQUEST, error.message, hint=error.hint) from None
        if not self._link.is_known(handle.broker_name):
            raise NoBroker(f"broker {handle.broker_name[:80]!r} is not registered", hint="Try again later")

        def on_response(response: Command | LaterMQError) -> None:
            if isinstance(response, LaterMQError) or response.code:
                exchange.fail(response if isinstance(response, LaterMQError) else error_of(response))
            else:
                message_id = response.text_fields().get("msgId", "")
                exchange.reply(pb.RecallMessageResponse(status=OK, message_id=message_id))

        fields = {"producerGroup": topic, "topic": topic, "recallHandle": request.recall_handle}
        self._link.request(handle.broker_name, Request.RECALL_MESSAGE, fields, on_response)


class _Results:
    """The results of several messages in one request. The answer leaves when all are known."""

    __slots__ = ("_exchange", "_ids", "_missing", "_results")

    def __init__(self, exchange: Exchange, message_ids: list[str]) -> None:
        self._exchange = exchange
        self._ids = message_ids
        self._results: list[Result | None] = [None] * len(message_ids)
        self._missing = len(message_ids)

    def put(self, place: int, result: Result) -> None:
        self._results[place] = result
        self._missing -= 1
        if not self._missing:
            self._answer()

    def _answer(self) -> None:
        answer = pb.SendMessageResponse()
        for message_id, result in zip(self._ids, self._results, strict=True):
            if isinstance(result, pb.SendResultEntry):
                answer.entries.append(result)
            else:
                assert result is not None, "an answer leaves when all results are known"
                answer.entries.add(status=self._exchange.refuse(result), message_id=message_id)
        answer.status.CopyFrom(combined([entry.status for entry in answer.entries]))
        self._exchange.reply(answer)


def _check_type(one: SentMessage, info: TopicInfo) -> None:
    kind = _TYPE_NAMES[one.kind]
    if info.message_type not in (kind, MIXED):
        raise CallRefused(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"a message of type {kind} was sent to topic {info.topic!r}, which accepts {info.message_type}",
            hint="Use another topic, or change the topic's attribute message.type",
        )


def _entry(one: SentMessage, reply: SendReply) -> pb.SendResultEntry:
    return pb.SendResultEntry(
        status=OK,
        message_id=one.message_id,
        transaction_id=one.message_id if one.kind == pb.TRANSACTION else "",
        offset=reply.queueOffset,
        recall_handle=reply.recallHandle,
    )
