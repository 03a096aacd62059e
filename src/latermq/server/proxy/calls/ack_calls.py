"""AckMessage: acknowledgements of all clients in one turn of the event loop are one request per broker."""

from collections.abc import Callable

from latermq.errors import LaterMQError, MalformedRequest
from latermq.group.pop.handles import ReceiptHandle, decode_handle
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.checked_names import check_group_name, check_topic_name
from latermq.protocol.messaging.encoded_answers import acknowledged_answer
from latermq.protocol.messaging.refusals import CallRefused
from latermq.protocol.messaging.resources import full_name
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.json_body import decode_body, encode_body
from latermq.server.proxy.brokers.broker_link import BrokerLink, error_of
from latermq.server.proxy.calls.call_table import CallEndpoint, Exchange, on_group, on_topic
from latermq.server.proxy.statuses import OK, combined
from latermq.server.remoting.access import SUB

MAX_ROWS = 1_000  # in one request to a broker, whose answer others of the same broker wait for
_EXECUTED = ("done", "repeated")
AckRow = tuple[str, str, int, int, int]  # group, topic that it was popped from, queue id, offset, pop time


class AckBatches:
    """Collects acknowledgements, and sends those of each broker together."""

    def __init__(self, link: BrokerLink, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """`call_soon` runs a function after everything that has arrived so far is read."""
        self._link = link
        self._call_soon = call_soon
        self._batches: dict[str, tuple[list[AckRow], list[Place]]] = {}

    def add(self, broker: str, row: AckRow, results: "AckResults", place: int) -> None:
        """Acknowledge one message, and put the outcome or an error into its place later."""
        batch = self._batches.get(broker)
        if batch is None:
            if not self._batches:
                self._call_soon(self._flush)
            batch = self._batches[broker] = ([], [])
        batch[0].append(row)
        batch[1].append((results, place))
        if len(batch[0]) >= MAX_ROWS:
            del self._batches[broker]
            self._request(broker, *batch)

    def _flush(self) -> None:
        batches, self._batches = self._batches, {}
        for broker, (rows, waiting) in batches.items():
            self._request(broker, rows, waiting)

    def _request(self, broker: str, rows: list[AckRow], waiting: "list[Place]") -> None:
        def on_response(response: Command | LaterMQError) -> None:
            outcomes = _outcomes(response, len(waiting))
            for (results, place), outcome in zip(waiting, outcomes, strict=True):
                results.put(place, outcome)

        self._link.request(broker, Request.ACK_POPPED, {}, on_response, body=encode_body(rows))


def _outcomes(response: Command | LaterMQError, count: int) -> list[str | LaterMQError]:
    if isinstance(response, LaterMQError):
        return [response] * count
    if response.code:
        return [error_of(response)] * count
    try:
        outcomes: list[str | LaterMQError] = list(decode_body(response.body, list[str]))
    except MalformedRequest as error:
        return [LaterMQError(f"the broker's reply cannot be read: {error.message}")] * count
    if len(outcomes) != count:
        return [LaterMQError(f"a broker answered {len(outcomes)} of {count} acknowledgements")] * count
    return outcomes


class AckCalls:
    """The call that acknowledges messages."""

    def __init__(self, batches: AckBatches, max_entries: int) -> None:
        self._batches = batches
        self._max_entries = max_entries

    @property
    def endpoints(self) -> list[CallEndpoint]:
        return [
            CallEndpoint(
                "AckMessage",
                pb.AckMessageRequest,
                pb.AckMessageResponse,
                self._ack,
                (on_topic("topic", SUB), on_group("group", SUB)),
            )
        ]

    def _ack(self, exchange: Exchange, request: pb.AckMessageRequest) -> None:
        group, topic = full_name(request.group), full_name(request.topic)
        check_group_name(group)
        check_topic_name(topic)
        entries = request.entries
        if not entries:
            raise CallRefused(pb.BAD_REQUEST, "the request has no entries")
        if len(entries) > self._max_entries:
            raise CallRefused(
                pb.PAYLOAD_TOO_LARGE, f"the request has {len(entries)} entries; the limit is {self._max_entries}"
            )
        results = AckResults(exchange, request)
        for place, entry in enumerate(entries):
            try:
                handle = read_handle(entry.receipt_handle)
            except CallRefused as refusal:
                results.put(place, refusal)
                continue
            self._batches.add(handle.broker_name, ack_row(group, topic, handle), results, place)


def read_handle(text: str) -> ReceiptHandle:
    """Decode a receipt handle. Raises CallRefused."""
    try:
        return decode_handle(text)
    except MalformedRequest as error:
        raise CallRefused(pb.INVALID_RECEIPT_HANDLE, error.message, hint=error.hint) from None


def ack_row(group: str, topic: str, handle: ReceiptHandle) -> AckRow:
    """Return what the broker needs for one acknowledgement."""
    return (group, handle.real_topic(group, topic), handle.queue_id, handle.offset, handle.pop_ms)


def stale_handle() -> CallRefused:
    """Return the error for a message that is no longer held with this handle."""
    return CallRefused(
        pb.INVALID_RECEIPT_HANDLE,
        "the receipt handle is no longer valid",
        hint="The message was delivered again, or its invisible time was changed",
    )


class AckResults:
    """The results of one request. The answer leaves when all are known."""

    __slots__ = ("_exchange", "_missing", "_request", "_statuses")

    def __init__(self, exchange: Exchange, request: pb.AckMessageRequest) -> None:
        self._exchange = exchange
        self._request = request
        self._missing = len(request.entries)
        self._statuses: list[pb.Status] = [OK] * self._missing

    def put(self, place: int, outcome: str | LaterMQError) -> None:
        if not isinstance(outcome, str):
            self._statuses[place] = self._exchange.refuse(outcome)
        elif outcome not in _EXECUTED:
            self._statuses[place] = self._exchange.refuse(stale_handle())
        self._missing -= 1
        if not self._missing:
            self._answer()

    def _answer(self) -> None:
        statuses = self._statuses
        if len(statuses) == 1 and statuses[0] is OK:  # nearly always
            [entry] = self._request.entries
            self._exchange.call.reply(acknowledged_answer(entry.message_id, entry.receipt_handle))
            return
        answer = pb.AckMessageResponse(status=combined(statuses))
        for entry, status in zip(self._request.entries, statuses, strict=True):
            answer.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status)
        self._exchange.reply(answer)


Place = tuple[AckResults, int]
