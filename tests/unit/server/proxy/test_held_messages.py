"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue."""

from collections.abc import Callable
from typing import cast

import msgspec
import pytest
from google.protobuf.duration_pb2 import Duration

from latermq.client.session.failures import ConnectFailed
from latermq.config import Config
from latermq.group.pop.handles import decode_handle
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.remoting.codes import Request, Response
from latermq.server.proxy.brokers.broker_link import BrokerLink
from latermq.server.proxy.calls.ack_calls import MAX_ROWS, AckBatches, AckCalls
from latermq.server.proxy.calls.held_message_calls import HeldMessageCalls
from tests.support.proxy_calls import FakeCall, FakeLink, FakeProxy

POP_MS = 1_700_000_000_500
TOPIC, GROUP = pb.Resource(name="orders"), pb.Resource(name="g")


def handle(offset: int = 70, broker: str = "broker-a", mark: int = 0) -> str:
    return f"70 {POP_MS} 30000 0 {mark} {broker} 2 {offset} {9000 + offset}"


class Consumer:
    """A proxy with two brokers, whose event loop turns on request."""

    def __init__(self) -> None:
        self.link = FakeLink("broker-a", "broker-b")
        link = cast(BrokerLink, self.link)
        self._soon: list[Callable[[], None]] = []
        self.proxy = FakeProxy([
            *AckCalls(AckBatches(link, self._soon.append), 1_500).endpoints,
            *HeldMessageCalls(link, Config().proxy.max_invisible).endpoints,
        ])  # fmt: skip

    def ack(self, *handles: str, topic: pb.Resource = TOPIC, group: pb.Resource = GROUP) -> FakeCall:
        entries = [pb.AckMessageEntry(message_id=f"id-{text}", receipt_handle=text) for text in handles]
        call: FakeCall = self.proxy.call("AckMessage", pb.AckMessageRequest(topic=topic, group=group, entries=entries))
        return call

    def turn(self) -> None:
        soon, self._soon[:] = list(self._soon), []
        for step in soon:
            step()

    def change(self, seconds: int = 5, text: str = handle(), suspend: bool | None = None) -> FakeCall:
        request = pb.ChangeInvisibleDurationRequest(
            topic=TOPIC, group=GROUP, receipt_handle=text, invisible_duration=Duration(seconds=seconds), suspend=suspend
        )
        call: FakeCall = self.proxy.call("ChangeInvisibleDuration", request)
        return call

    def bury(self, text: str = handle()) -> FakeCall:
        request = pb.ForwardMessageToDeadLetterQueueRequest(
            topic=TOPIC, group=GROUP, receipt_handle=text, delivery_attempt=17
        )
        call: FakeCall = self.proxy.call("ForwardMessageToDeadLetterQueue", request)
        return call


def acked(call: FakeCall) -> tuple[int, list[int]]:
    [answer] = call.read(pb.AckMessageResponse)
    return answer.status.code, [entry.status.code for entry in answer.entries]


def test_acknowledgements_of_one_turn_are_one_request_per_broker() -> None:
    consumer = Consumer()
    calls = [consumer.ack(handle(70)), consumer.ack(handle(71), handle(5, "broker-b", 1)), consumer.ack(handle(72))]
    assert consumer.link.take() == []
    consumer.turn()
    first, second = consumer.link.take()
    assert (first.broker, first.code, second.broker) == ("broker-a", Request.ACK_POPPED, "broker-b")
    assert msgspec.json.decode(first.body) == [["g", "orders", 2, offset, POP_MS] for offset in (70, 71, 72)]
    assert msgspec.json.decode(second.body) == [["g", "%RETRY%g_orders", 2, 5, POP_MS]]
    first.answer(body=b'["done","repeated","stale"]')
    assert [len(call.answers) for call in calls] == [1, 0, 1]
    second.answer(body=b'["unknown"]')
    assert acked(calls[0]) == (pb.OK, [pb.OK])
    assert acked(calls[1]) == (pb.MULTIPLE_RESULTS, [pb.OK, pb.INVALID_RECEIPT_HANDLE])
    assert acked(calls[2]) == (pb.INVALID_RECEIPT_HANDLE, [pb.INVALID_RECEIPT_HANDLE])
    [answer] = calls[1].read(pb.AckMessageResponse)
    assert [entry.receipt_handle for entry in answer.entries] == [handle(71), handle(5, "broker-b", 1)]
    assert [entry.message_id for entry in answer.entries] == [f"id-{entry.receipt_handle}" for entry in answer.entries]


def test_the_next_turn_is_another_request() -> None:
    consumer = Consumer()
    for offset in (70, 71):
        consumer.ack(handle(offset))
        consumer.turn()
    assert len(consumer.link.take()) == 2


def test_a_request_to_a_broker_has_a_bound() -> None:
    consumer = Consumer()
    consumer.ack(*[handle(70 + number) for number in range(MAX_ROWS + 10)])
    consumer.turn()
    assert [len(msgspec.json.decode(request.body)) for request in consumer.link.take()] == [MAX_ROWS, 10]


# Queue ids that no broker can read, because they have more than 32 bits, would spoil the request of all clients.
WIDE_QUEUES = [
    decode_handle(handle())._replace(queue_id=1 << 31).encode(),
    decode_handle(handle())._replace(revive_queue_id=1 << 31).encode(),
]


@pytest.mark.parametrize(
    "text", ["", "1 2 3", "a b c d 0 e f g", handle() + " 1 1", handle().replace("70", "-7"), *WIDE_QUEUES]
)
def test_a_handle_that_is_none_has_its_own_status(text: str) -> None:
    consumer = Consumer()
    call = consumer.ack(handle(), text)
    consumer.turn()
    consumer.link.take()[0].answer(body=b'["done"]')
    assert acked(call) == (pb.MULTIPLE_RESULTS, [pb.OK, pb.INVALID_RECEIPT_HANDLE])
    alone = consumer.ack(text)
    assert acked(alone) == (pb.INVALID_RECEIPT_HANDLE, [pb.INVALID_RECEIPT_HANDLE])


def test_a_broker_that_cannot_be_reached_fails_its_entries() -> None:
    consumer = Consumer()
    call = consumer.ack(handle(70), handle(71))
    consumer.turn()
    consumer.link.take()[0].fail(ConnectFailed("down"))
    assert acked(call) == (pb.INTERNAL_SERVER_ERROR, [pb.INTERNAL_SERVER_ERROR] * 2)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'["done","done"]', b"[1]"])
def test_a_reply_that_makes_no_sense_fails_its_entries(body: bytes) -> None:
    consumer = Consumer()
    call = consumer.ack(handle())
    consumer.turn()
    consumer.link.take()[0].answer(body=body)
    assert acked(call) == (pb.INTERNAL_SERVER_ERROR, [pb.INTERNAL_SERVER_ERROR])


def test_the_number_of_entries_is_bounded() -> None:
    consumer = Consumer()
    assert acked(consumer.ack(*[handle()] * 1_501)) == (pb.PAYLOAD_TOO_LARGE, [])
    consumer.turn()
    assert consumer.link.take() == []


def test_names_are_checked_and_an_empty_request_is_refused() -> None:
    consumer = Consumer()
    assert acked(consumer.ack(handle(), topic=pb.Resource(name="a b"))) == (pb.ILLEGAL_TOPIC, [])
    assert acked(consumer.ack(handle(), group=pb.Resource())) == (pb.ILLEGAL_CONSUMER_GROUP, [])
    assert acked(consumer.ack()) == (pb.BAD_REQUEST, [])


def changed(call: FakeCall) -> tuple[int, str]:
    [answer] = call.read(pb.ChangeInvisibleDurationResponse)
    return answer.status.code, answer.receipt_handle


def test_a_change_returns_the_new_handle() -> None:
    consumer = Consumer()
    call = consumer.change(5, handle(71), suspend=True)
    [request] = consumer.link.take()
    assert (request.broker, request.code) == ("broker-a", Request.CHANGE_MESSAGE_INVISIBLETIME)
    assert request.fields == {
        "consumerGroup": "g", "topic": "orders", "queueId": "2", "offset": "71", "invisibleTime": "5000",
        "suspend": "true", "extraInfo": f"70 {POP_MS} 30000 0 0 broker-a 2 71",
    }  # fmt: skip
    request.answer(fields={"popTime": str(POP_MS + 9), "invisibleTime": "5000", "reviveQid": "0"})
    assert changed(call) == (pb.OK, f"71 {POP_MS + 9} 5000 0 0 broker-a 2 71 9071")


@pytest.mark.parametrize("seconds", [0, 12 * 3600])
def test_a_change_may_be_to_nothing_or_half_a_day(seconds: int) -> None:
    consumer = Consumer()
    consumer.change(seconds)
    assert consumer.link.take()[0].fields["invisibleTime"] == str(seconds * 1000)


@pytest.mark.parametrize(
    ("seconds", "text", "code"),
    [
        (-1, handle(), pb.ILLEGAL_INVISIBLE_TIME),
        (12 * 3600 + 1, handle(), pb.ILLEGAL_INVISIBLE_TIME),
        (5, "nonsense", pb.INVALID_RECEIPT_HANDLE),
        (5, "", pb.INVALID_RECEIPT_HANDLE),
    ],
)
def test_a_refused_change_returns_the_old_handle(seconds: int, text: str, code: int) -> None:
    consumer = Consumer()
    assert changed(consumer.change(seconds, text)) == (code, text)
    assert consumer.proxy.table.refused[code] == 1


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Response.NO_MESSAGE, pb.INVALID_RECEIPT_HANDLE),
        (Response.SYSTEM_BUSY, pb.TOO_MANY_REQUESTS),
        (Response.SYSTEM_ERROR, pb.INTERNAL_SERVER_ERROR),
        (Response.SUCCESS, pb.INTERNAL_SERVER_ERROR),  # without the fields of a reply
    ],
)
def test_a_failed_change_returns_the_old_handle(code: int, expected: int) -> None:
    consumer = Consumer()
    call = consumer.change()
    consumer.link.take()[0].answer(code)
    assert changed(call) == (expected, handle())


def test_a_message_is_forwarded_to_the_dead_letters() -> None:
    consumer = Consumer()
    call = consumer.bury(handle(5, mark=1))
    [request] = consumer.link.take()
    assert request.code == Request.BURY_POPPED
    assert request.fields == {
        "group": "g", "topic": "%RETRY%g_orders", "queueId": "2", "offset": "5", "popTime": str(POP_MS),
        "reason": "its consumer gave up after 17 attempts",
    }  # fmt: skip
    request.answer()
    [answer] = call.read(pb.ForwardMessageToDeadLetterQueueResponse)
    assert answer.status.code == pb.OK


def test_a_stale_handle_forwards_nothing() -> None:
    consumer = Consumer()
    call = consumer.bury()
    consumer.link.take()[0].answer(Response.NO_MESSAGE)
    for refused in (call, consumer.bury("nonsense")):
        [answer] = refused.read(pb.ForwardMessageToDeadLetterQueueResponse)
        assert answer.status.code == pb.INVALID_RECEIPT_HANDLE
