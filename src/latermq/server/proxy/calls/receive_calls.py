"""ReceiveMessage: a pop at a broker that may wait, and its messages as a stream of answers.

Messages that cannot be handed over, because the client has gone or reads too slowly, are returned at once. An error
that may be over soon, such as a broker that is away, is answered after a pause: most clients receive again at once.
"""

from collections.abc import Callable, Iterable
from functools import partial

import structlog

from latermq.client.session.failures import RequestTimedOut
from latermq.clock import Clock
from latermq.config import Config
from latermq.errors import LaterMQError, PollingFull
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.checked_names import check_group_name, check_topic_name
from latermq.protocol.messaging.popped_messages import PoppedMessages, PopReply
from latermq.protocol.messaging.refusals import CallRefused
from latermq.protocol.messaging.resources import full_name
from latermq.protocol.messaging.times import duration_ms, set_timestamp
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command
from latermq.server.http2.calls import Call
from latermq.server.proxy.brokers.broker_link import BrokerLink, error_of, header_of
from latermq.server.proxy.calls.call_table import CallEndpoint, Exchange, on_group
from latermq.server.proxy.calls.returned_messages import ReturnedMessages
from latermq.server.proxy.statuses import OK
from latermq.server.remoting.access import SUB, Kind, Rule

MAX_BATCH = 32  # of one pop, in the protocol of brokers
LEASED_INVISIBLE_MS = 60_000  # in handles of leased messages, where it means nothing
MAX_POLL_MS = 240_000  # what brokers allow
# An answer must arrive before the deadline of its call: later, its messages would be lost until they are visible again.
DEADLINE_MARGIN_MS = 1_500
# Not settings: they fit into the header of a pop, and a header that exceeds the limit of the protocol would end the
# connection, which all clients share.
MAX_EXPRESSION_CHARS, MAX_ATTEMPT_ID_CHARS = 4_096, 1_024
_CHUNK_BYTES = 64 * 1024  # of records, between two looks at whether the client reads them
_EMPTY = (Response.PULL_NOT_FOUND, Response.POLLING_TIMEOUT)
_START = pb.ReceiveMessageResponse(status=OK).SerializeToString()
# Not an error, and not counted as one: a consumer without messages gets it all the time.
_NO_MESSAGE = pb.ReceiveMessageResponse(
    status=pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no new message")
).SerializeToString()

_log = structlog.get_logger(__name__)


def stream_failure(status: pb.Status, now_ms: int) -> Iterable[pb.ReceiveMessageResponse]:
    """Return the answers that end a receive without messages."""
    end = pb.ReceiveMessageResponse()
    set_timestamp(end.delivery_timestamp, now_ms)
    return (pb.ReceiveMessageResponse(status=status), end)


class UnknownBroker(CallRefused):
    """The named broker is not registered. It may have been removed, or have just joined."""

    retriable = True

    def __init__(self, broker: str) -> None:
        super().__init__(pb.BAD_REQUEST, f"broker {broker[:80]!r} is not registered", hint="Query the assignment again")


class ReceiveCalls:
    """The calls of consumers that wait for messages."""

    def __init__(
        self,
        link: BrokerLink,
        see: Callable[[str, str, str], object],
        returned: ReturnedMessages,
        config: Config,
        clock: Clock,
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """`see` notes that a client is alive: its id, its group and the address of its host.

        `later` is `call_later` of the event loop.
        """
        self.later = later
        self._link = link
        self._see = see
        self.returned = returned
        self._clock = clock
        self._default_poll_ms = config.proxy.poll_timeout
        self._broker_timeout_ms = config.proxy.broker_timeout
        self._max_unsent_bytes = config.proxy.max_unsent
        self._outage_pause_ms = config.proxy.outage_pause
        self._min_invisible, self._max_invisible = config.proxy.min_invisible, config.proxy.max_invisible
        self._waiting: dict[_Receive, None] = {}
        self.unsent_bytes = 0  # of messages whose clients read slowly
        self._is_stopping = False

    @property
    def endpoints(self) -> list[CallEndpoint]:
        topic = Rule(Kind.TOPIC, (SUB,), lambda _, request: (full_name(request.message_queue.topic),))
        return [
            CallEndpoint(
                "ReceiveMessage",
                pb.ReceiveMessageRequest,
                pb.ReceiveMessageResponse,
                self._receive,
                (topic, on_group("group", SUB)),
                failure=lambda status: stream_failure(status, self._clock.now_ms()),
            )
        ]

    def statistics(self) -> dict[str, int]:
        return {"waiting_receives": len(self._waiting), "unsent_message_bytes": self.unsent_bytes}

    def release(self) -> None:
        """Answer all waiting clients, because the proxy stops. They find another proxy.

        Their pops must take no more messages. What one finds before that is returned.
        """
        self._is_stopping = True
        for receive in list(self._waiting):
            receive.cancel_pop()
            receive.release()

    def _receive(self, exchange: Exchange, request: pb.ReceiveMessageRequest) -> None:
        group, topic = full_name(request.group), full_name(request.message_queue.topic)
        check_group_name(group)
        check_topic_name(topic)
        broker = request.message_queue.broker.name
        poll_ms = self._poll_ms(exchange, request)
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": "-1",
            "maxMsgNums": str(min(request.batch_size, MAX_BATCH) if request.batch_size > 0 else MAX_BATCH),
            "invisibleTime": str(self._invisible_ms(request)),
            "pollTime": str(poll_ms),
            "bornTime": "0",  # the broker's own time: its clock may differ
            "initMode": "1",
        }
        filter_expression = request.filter_expression
        expression = filter_expression.expression
        if len(expression) > MAX_EXPRESSION_CHARS:
            raise CallRefused(
                pb.ILLEGAL_FILTER_EXPRESSION,
                f"the filter expression has {len(expression)} characters; the limit is {MAX_EXPRESSION_CHARS}",
            )
        if len(request.attempt_id) > MAX_ATTEMPT_ID_CHARS:
            raise CallRefused(
                pb.BAD_REQUEST,
                f"the attempt id has {len(request.attempt_id)} characters; the limit is {MAX_ATTEMPT_ID_CHARS}",
            )
        if expression and expression != "*":
            fields["expType"] = "SQL92" if filter_expression.type == pb.SQL else "TAG"
            fields["exp"] = expression
        if request.auto_renew:
            fields["lease"] = exchange.client_id
        if request.attempt_id:
            fields["attemptId"] = request.attempt_id
        receive = _Receive(self, exchange, group, request.message_queue.topic, broker, request.auto_renew, poll_ms)
        if self._is_stopping:
            receive.release()
            return
        if not self._link.is_known(broker):
            self._waiting[receive] = None
            exchange.call.on_cancel = receive.cancel
            receive.on_response(UnknownBroker(broker))
            return
        # Before the pop: the broker must know a client that holds messages, even if the proxy has just started.
        self._see(exchange.client_id, group, exchange.peer)
        self._waiting[receive] = None
        exchange.call.on_cancel = receive.cancel
        timeout_s = (poll_ms + self._broker_timeout_ms) / 1000
        receive.pop_opaque = self._link.request(
            broker, Request.POP_MESSAGE, fields, receive.on_response, timeout_s=timeout_s
        )

    def _poll_ms(self, exchange: Exchange, request: pb.ReceiveMessageRequest) -> int:
        """Return how long to wait for messages: as long as the client asks, but not up to its deadline."""
        longest_ms = _longest_ms(exchange.call)
        if request.HasField("long_polling_timeout"):
            return max(0, min(duration_ms(request.long_polling_timeout), longest_ms))
        return longest_ms if exchange.call.deadline_s is not None else self._default_poll_ms

    def _invisible_ms(self, request: pb.ReceiveMessageRequest) -> int:
        if request.auto_renew:
            return LEASED_INVISIBLE_MS
        invisible_ms = duration_ms(request.invisible_duration)
        if not self._min_invisible <= invisible_ms <= self._max_invisible:
            raise CallRefused(
                pb.ILLEGAL_INVISIBLE_TIME,
                f"the invisible duration is {invisible_ms} ms",
                hint=f"Use {self._min_invisible // 1000} to {self._max_invisible // 1000} s",
            )
        return invisible_ms

    # For the receives

    def outage_pause_ms(self, call: Call, poll_ms: int) -> int:
        """Return how long to wait before an error that may be over soon: not longer than the client waits."""
        return min(self._outage_pause_ms, poll_ms, _longest_ms(call))

    def cancel_pop(self, broker: str, opaque: int) -> None:
        """Let the broker answer a waiting pop. If it has found messages meanwhile, they are returned."""
        self._link.request(broker, Request.CANCEL_POP, {"pop": str(opaque)}, lambda response: None)

    def ended(self, receive: "_Receive") -> None:
        self._waiting.pop(receive, None)

    def has_room(self) -> bool:
        return self.unsent_bytes < self._max_unsent_bytes

    def now_ms(self) -> int:
        return self._clock.now_ms()


class _Receive:
    """One call, from the pop until its last message is sent."""

    __slots__ = (
        "_broker",
        "_calls",
        "_exchange",
        "_group",
        "_is_leased",
        "_name",
        "_namespace",
        "_poll_ms",
        "_popped",
        "_unsent_bytes",
        "is_answered",
        "pop_opaque",
    )

    def __init__(
        self, calls: ReceiveCalls, exchange: Exchange, group: str, topic: pb.Resource, broker: str, is_leased: bool,
        poll_ms: int,
    ) -> None:  # fmt: skip
        self._calls = calls
        self._exchange = exchange
        self._group = group
        # Not the resource itself: a part of a message keeps the whole message in memory, and thousands may wait.
        self._name, self._namespace = topic.name, topic.resource_namespace
        self._broker = broker
        self._is_leased = is_leased
        self._poll_ms = poll_ms
        self._popped: PoppedMessages | None = None
        self.is_answered = False  # by the broker
        self.pop_opaque = 0
        self._unsent_bytes = 0  # as counted in ReceiveCalls

    def on_response(self, response: Command | LaterMQError) -> None:
        self.is_answered = True
        try:
            popped = self._read(response)
        except LaterMQError as error:
            self._fail_soon(error)
            return
        call = self._exchange.call
        if popped is None:
            self.release()
            return
        if not call.is_open:
            self._calls.ended(self)
            self._give_back(popped)
            return
        self._popped = popped
        call.send(_START)
        self._send_more()

    def _fail_soon(self, error: LaterMQError) -> None:
        # A timeout needs no further pause, and the client's own mistakes get their answer at once.
        is_passing = error.retriable and not isinstance(error, RequestTimedOut)
        pause_ms = self._calls.outage_pause_ms(self._exchange.call, self._poll_ms) if is_passing else 0
        if pause_ms > 0:
            self._calls.later(pause_ms / 1000, partial(self._fail, error))
        else:
            self._fail(error)

    def _fail(self, error: LaterMQError) -> None:
        if self._exchange.call.is_open:
            self._calls.ended(self)
            self._exchange.fail(error)

    def _read(self, response: Command | LaterMQError) -> PoppedMessages | None:
        if isinstance(response, LaterMQError):
            raise response
        if response.code in _EMPTY or (not response.code and not response.body):
            return None
        if response.code == Response.POLLING_FULL:
            raise PollingFull(response.remark or "too many consumers wait for messages")
        if response.code:
            raise error_of(response)
        topic = pb.Resource(resource_namespace=self._namespace, name=self._name)
        return PoppedMessages(header_of(response, PopReply), response.body, self._broker, topic)

    def _send_more(self) -> None:
        """Send as many messages as the client takes in, and wait for it with the rest."""
        popped, call = self._popped, self._exchange.call
        if popped is None or not call.is_open:
            return  # cancelled
        try:
            while popped.unread_bytes:
                if not call.is_writable:
                    if self._wait(popped):
                        return
                    break
                call.send_all(self._next_messages(popped))
        except LaterMQError as error:
            # The rest cannot be read, so it cannot be returned either: it is visible again after its time.
            _log.error("a broker sent records that cannot be read", broker=self._broker, reason=error.remark)
        self._finish()

    def _next_messages(self, popped: PoppedMessages) -> list[bytes]:
        last_bytes = max(0, popped.unread_bytes - _CHUNK_BYTES)
        messages: list[bytes] = []
        while popped.unread_bytes > last_bytes:
            response = pb.ReceiveMessageResponse()
            try:
                popped.read(response)
            except LaterMQError:
                if messages:
                    return messages  # the next attempt raises it again
                raise
            messages.append(response.SerializeToString())
        return messages

    def _wait(self, popped: PoppedMessages) -> bool:
        """Wait until the client reads on. Returns False if too many messages wait already: it then gets no more."""
        self._count(0)
        if not self._calls.has_room():
            self._give_back(popped)
            return False
        self._count(popped.unread_bytes)
        self._exchange.call.when_writable(self._send_more)
        return True

    def _finish(self) -> None:
        self._count(0)
        popped, self._popped = self._popped, None
        self._calls.ended(self)
        if self._is_leased and popped is not None:
            pop_ms = popped.pop_ms
            self._exchange.call.when_read(lambda is_read: None if is_read else self._lose(pop_ms))
        self._end()

    def _count(self, unsent_bytes: int) -> None:
        self._calls.unsent_bytes += unsent_bytes - self._unsent_bytes
        self._unsent_bytes = unsent_bytes

    def cancel(self) -> None:
        """The client is gone. A pop that still waits at the broker must not take a message or a place there."""
        self.cancel_pop()
        popped, self._popped = self._popped, None
        self._count(0)
        self._calls.ended(self)
        if popped is not None:
            self._give_back(popped)
            if self._is_leased:
                self._lose(popped.pop_ms)  # a client ignores what it has got of a call that did not end

    def cancel_pop(self) -> None:
        if not self.is_answered:
            self._calls.cancel_pop(self._broker, self.pop_opaque)

    def _lose(self, pop_ms: str) -> None:
        self._calls.returned.lose(self._broker, self._group, self._exchange.client_id, pop_ms)

    def release(self) -> None:
        """Answer a client that waits that there is no message."""
        if self._popped is None:
            self._calls.ended(self)
            self._exchange.call.send(_NO_MESSAGE)
            self._end()

    def _give_back(self, popped: PoppedMessages) -> None:
        """Make messages visible again that the client has not received."""
        topic = full_name(pb.Resource(resource_namespace=self._namespace, name=self._name))
        self._calls.returned.give_back(self._group, topic, popped)

    def _end(self) -> None:
        end = pb.ReceiveMessageResponse()
        set_timestamp(end.delivery_timestamp, self._calls.now_ms())
        self._exchange.call.send(end.SerializeToString())
        self._exchange.call.end()


def _longest_ms(call: Call) -> int:
    """Return how long an answer may take, so that it arrives before the deadline of its call."""
    if call.deadline_s is None:
        return MAX_POLL_MS
    left_ms = max(0, int((call.deadline_s - call.connection.now_s()) * 1000))
    return min(MAX_POLL_MS, left_ms - min(DEADLINE_MARGIN_MS, left_ms // 3))
