"""Pop requests and notifications, answered at once or when a message arrives."""

from collections.abc import Iterator
from struct import Struct

from latermq.broker.metrics.topic_traffic import TopicTraffic
from latermq.broker.pop.copies import as_sent
from latermq.broker.pop.pop_request import Popped, PoppedPart, PopRequest
from latermq.broker.pop.pops import Pops
from latermq.broker.pop.reported_clients import lease_of
from latermq.broker.pop.waiting_pops import ANY_QUEUE, WaitingPop, WaitingPops
from latermq.clock import Clock
from latermq.config import Config
from latermq.errors import InvalidParameter, LaterMQError, PollingFull
from latermq.group.filters import Filters
from latermq.group.pop.handles import (
    IN_ORDER_REVIVE_QUEUE,
    NORMAL,
    ReceiptHandle,
    offset_infos,
    order_count_info,
    topic_mark,
)
from latermq.group.pop.operations import attempt_hash
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import FLAG_RESPONSE, Command, encode_frame, encode_response
from latermq.protocol.remoting.pop import (
    FROM_END,
    CancelPopHeader,
    NotificationHeader,
    PollingInfoHeader,
    PopHeader,
    encode_pop_reply,
)
from latermq.server.handlers.pop_replies import PopReplies
from latermq.server.remoting.access import GET, OPEN, SUB, on_group, on_topic
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint

MAX_MESSAGES = 32
MAX_POLL_MS = 240_000  # below server.idle_timeout, and no client may keep a pop waiting indefinitely
MAX_TEXT_CHARS = 1_024  # of an attempt id or a client id
_EARLY_MS = 50  # before the end of the client's time: the answer needs some
_TOO_LATE_MS = 500
_SIZE = Struct(">I")


class PopRequests:
    """Serves pops, and answers those that had to wait."""

    def __init__(
        self,
        pops: Pops,
        waiting_pops: WaitingPops,
        replies: PopReplies,
        filters: Filters,
        traffic: TopicTraffic,
        client_clock: Clock,
        config: Config,
    ) -> None:
        self._pops = pops
        self._waiting_pops = waiting_pops
        self._replies = replies
        self._filters = filters
        self._traffic = traffic
        self._client_clock = client_clock
        self._broker_name = config.broker.name
        self._max_hold_ms = int(config.pop.max_hold)
        self._notifications = Notifications(pops, waiting_pops, replies, client_clock)

    @property
    def endpoints(self) -> list[Endpoint]:
        access = (on_group("consumerGroup", SUB), on_topic("topic", SUB))
        info = (on_group("consumerGroup", GET), on_topic("topic", GET))
        notifications = self._notifications
        return [
            Endpoint(Request.POP_MESSAGE, self._pop, access, PopHeader),
            Endpoint(Request.CANCEL_POP, self._cancel, OPEN, CancelPopHeader),
            Endpoint(Request.NOTIFICATION, notifications.notify, access, NotificationHeader),
            Endpoint(Request.POLLING_INFO, notifications.polling_info, info, PollingInfoHeader),
        ]

    def _pop(self, connection: Connection, command: Command, header: PopHeader) -> bytes | None:
        now_ms = self._client_clock.now_ms()
        if is_too_late(header.bornTime, header.pollTime, now_ms):
            return encode_response(command, Response.POLLING_TIMEOUT, remark="the time of this pop is over")
        if not 0 < header.maxMsgNums <= MAX_MESSAGES:
            raise InvalidParameter(
                f"{header.maxMsgNums} messages cannot be popped at once", hint=f"Pop 1 to {MAX_MESSAGES}"
            )
        attempt = lease = ""
        if header.attemptId:
            attempt = _checked_text("attempt id", header.attemptId)
        if header.lease:
            lease = _checked_text("lease", header.lease)
        topic = self._pops.check_topic(header.topic, header.queueId)
        group = self._pops.check_group(header.consumerGroup, connection.peer_host)
        request = PopRequest(
            group.name,
            topic.name,
            header.queueId,
            header.maxMsgNums,
            header.invisibleTime,
            message_filter=self._filters.of_request(header.topic, header.exp, header.expType),
            from_end=header.initMode == FROM_END,
            is_ordered=group.is_ordered or bool(header.order),
            attempt=attempt_hash(attempt) if attempt else 0,
            lease=lease_of(group.name, lease) if lease else 0,
        )
        self._replies.check_pop()
        self._replies.check_room()
        popped = self._pops.pop(request)
        if popped.parts and not command.is_oneway:
            self._answer(connection, command.opaque, request, popped)
            return None
        self._replies.settle_soon()  # all messages may be filtered, and a deadline must be scheduled
        if popped.parts:
            self._pops.give_back(popped)
            return None
        if not popped.is_at_end or header.pollTime <= 0 or command.is_oneway:
            return encode_response(command, Response.POLLING_TIMEOUT, remark="no message found")
        pop = WaitingPop(connection, self, command.opaque, command.encoding, request)
        self._waiting_pops.add(pop, deadline_ms(header.bornTime, header.pollTime, self._client_clock))
        return None

    # Waiting pops

    def _cancel(self, connection: Connection, command: Command, header: CancelPopHeader) -> bytes:
        """Answer a waiting pop of the same connection without messages."""
        self._waiting_pops.cancel(connection, header.pop)
        return encode_response(command)

    def resume(self, pop: WaitingPop) -> bool:
        """Try again. Return whether the pop is answered."""
        connection = pop.client
        assert isinstance(connection, Connection)
        try:
            self._pops.check_again(pop.request, connection.peer_host)
            self._replies.check_pop()
            popped = self._pops.pop(pop.request)
        except Exception as error:  # must not affect the other waiting pops
            request = Command(Request.POP_MESSAGE, opaque=pop.opaque, encoding=pop.encoding)
            connection.send(connection.refuse(request, error))
            return True
        self._replies.settle_soon()
        if not popped.parts:
            if not popped.is_at_end:
                self.expire(pop)
                return True
            return False
        self._answer(connection, pop.opaque, pop.request, popped)
        return True

    def expire(self, pop: WaitingPop) -> None:
        """Answer that no message arrived in time."""
        connection = pop.client
        assert isinstance(connection, Connection)
        connection.send(
            encode_frame(Response.POLLING_TIMEOUT, pop.opaque, flag=FLAG_RESPONSE, encoding=pop.encoding, fields={})
        )

    # Answers

    def _answer(self, connection: Connection, opaque: int, request: PopRequest, popped: Popped) -> None:
        invisible_ms = self._max_hold_ms if request.lease else max(0, request.invisible_ms)
        queues, body, counts = [], [], None
        for part in popped.parts:
            queue, offsets = part.queue, part.offsets
            if queue.topic == request.topic:
                mark = NORMAL
                body += part.pieces
            else:
                mark = topic_mark(queue.topic)
                body += self._as_sent(request.topic, popped.pop_ms, invisible_ms, part)
            queues.append((mark, queue.queue_id, offsets))
            self._traffic.count_pulled(queue.topic, request.group, len(offsets))
        if request.is_ordered:
            counts = order_count_info((NORMAL, part.queue.queue_id, part.counts) for part in popped.parts)
        starts, all_offsets = offset_infos(queues)
        reply = encode_pop_reply(
            opaque,
            pop_ms=popped.pop_ms,
            invisible_ms=invisible_ms,
            revive_queue_id=IN_ORDER_REVIVE_QUEUE if request.is_ordered else 0,
            rest=popped.rest,
            starts=starts,
            offsets=all_offsets,
            order_counts=counts,
            body=b"".join(body),
        )
        self._replies.hold_pop(connection, reply, lambda: self._pops.give_back(popped), request.lease, popped.pop_ms)

    def _as_sent(self, topic: str, pop_ms: int, invisible_ms: int, part: PoppedPart) -> list[bytes]:
        handle = ReceiptHandle(
            part.offsets[0], pop_ms, invisible_ms, 0, topic_mark(part.queue.topic), self._broker_name,
            part.queue.queue_id, 0,
        )  # fmt: skip
        return [
            as_sent(record, topic, handle._replace(offset=offset))
            for record, offset in zip(_records(part.pieces), part.offsets, strict=True)
        ]


class Notifications:
    """Tells clients that there are messages, without popping them."""

    def __init__(self, pops: Pops, waiting_pops: WaitingPops, replies: PopReplies, client_clock: Clock) -> None:
        self._pops = pops
        self._waiting_pops = waiting_pops
        self._replies = replies
        self._client_clock = client_clock

    def notify(self, connection: Connection, command: Command, header: NotificationHeader) -> bytes | None:
        now_ms = self._client_clock.now_ms()
        attempt = _checked_text("attempt id", header.attemptId or "")
        topic = self._pops.check_topic(header.topic, header.queueId)
        group = self._pops.check_group(header.consumerGroup, connection.peer_host)
        request = PopRequest(
            group.name,
            topic.name,
            header.queueId,
            1,
            0,
            is_ordered=group.is_ordered or bool(header.order),
            attempt=attempt_hash(attempt),
        )
        has_messages = self._pops.has_messages(request)
        if has_messages or header.pollTime <= 0 or is_too_late(header.bornTime, header.pollTime, now_ms):
            return encode_response(command, fields=_notification(has_messages))
        pop = WaitingPop(connection, self, command.opaque, command.encoding, request)
        try:
            self._waiting_pops.add(pop, deadline_ms(header.bornTime, header.pollTime, self._client_clock))
        except PollingFull:
            return encode_response(command, fields={"hasMsg": "false", "pollingFull": "true"})
        self._replies.settle_soon()  # so that its deadline is scheduled
        return None

    def resume(self, pop: WaitingPop) -> bool:
        """Try again. Return whether the request is answered."""
        connection = pop.client
        assert isinstance(connection, Connection)
        try:
            self._pops.check_again(pop.request, connection.peer_host)
            if not self._pops.has_messages(pop.request):
                return False
        except LaterMQError:
            self.expire(pop)  # for example, the topic was deleted
            return True
        self._send(pop, has_messages=True)
        return True

    def expire(self, pop: WaitingPop) -> None:
        """Answer that no message arrived in time."""
        self._send(pop, has_messages=False)

    def _send(self, pop: WaitingPop, *, has_messages: bool) -> None:
        connection = pop.client
        assert isinstance(connection, Connection)
        fields = _notification(has_messages)
        connection.send(encode_frame(0, pop.opaque, flag=FLAG_RESPONSE, encoding=pop.encoding, fields=fields))

    def polling_info(self, connection: Connection, command: Command, header: PollingInfoHeader) -> bytes:
        self._pops.check_topic(header.topic, header.queueId)
        count = self._waiting_pops.count_of(header.consumerGroup, header.topic, max(header.queueId, ANY_QUEUE))
        return encode_response(command, fields={"pollingNum": str(count)})


def is_too_late(born_ms: int, poll_ms: int, now_ms: int) -> bool:
    """Whether the client has stopped waiting for the answer to its pop."""
    return born_ms > 0 and born_ms + max(0, poll_ms) < now_ms - _TOO_LATE_MS


def deadline_ms(born_ms: int, poll_ms: int, clock: Clock) -> int:
    """Return when a waiting pop is answered without messages, by the monotonic clock, which does not step.

    The client's clock may be ahead of the broker's.
    """
    age_ms = max(0, clock.now_ms() - born_ms) if born_ms > 0 else 0
    return int(clock.monotonic_s() * 1000) - age_ms + min(poll_ms, MAX_POLL_MS) - _EARLY_MS


def _notification(has_messages: bool) -> dict[str, str]:
    return {"hasMsg": "true" if has_messages else "false", "pollingFull": "false"}


def _checked_text(what: str, text: str) -> str:
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidParameter(f"the {what} has {len(text)} characters; the limit is {MAX_TEXT_CHARS}")
    return text


def _records(pieces: list[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        at = 0
        while at < len(piece):
            (size,) = _SIZE.unpack_from(piece, at)
            yield piece[at : at + size]
            at += size
