"""ReceiveMessage: what the broker is asked, what the client gets, and what happens to messages nobody gets."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from latermq.client.session.failures import ConnectionLost, RequestTimedOut
from latermq.clock import SimulatedClock
from latermq.config import Config, Duration, ProxyConfig, Size
from latermq.message.ids import pack_host
from latermq.message.properties import encode_properties
from latermq.message.record_writer import encode_record
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.remoting.codes import Request, Response
from latermq.server.proxy.brokers.broker_link import BrokerLink
from latermq.server.proxy.calls.receive_calls import ReceiveCalls
from latermq.server.proxy.calls.returned_messages import ReturnedMessages
from tests.support.proxy_calls import BrokerRequest, FakeCall, FakeLink, FakeProxy
from tests.support.proxy_messages import BROKER, receive_request

HOST = pack_host("10.0.0.1", 10911)
POP_MS = 1_700_000_000_500


class Receiver:
    """A proxy with one broker."""

    def __init__(self, **settings: Any) -> None:
        self.link = FakeLink(BROKER)
        link = cast(BrokerLink, self.link)
        self.seen: list[tuple[str, str, str]] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.now_s = 0.0
        config = Config(proxy=ProxyConfig(**settings))

        def later(pause_s: float, then: Callable[[], None]) -> None:
            self.later.append((pause_s, then))

        self.returned = ReturnedMessages(link, config.proxy, lambda: self.now_s, later)
        self.calls = ReceiveCalls(
            link,
            lambda *client: self.seen.append(client),
            self.returned,
            config,
            SimulatedClock(1_700_000_000_000),
            later,
        )
        self.proxy = FakeProxy(self.calls.endpoints)

    def receive(self, call: FakeCall | None = None, poll_s: float | None = 2.0, **fields: Any) -> FakeCall:
        made: FakeCall = self.proxy.call("ReceiveMessage", receive_request("orders", "g", poll_s, **fields), call)
        return made

    def wait(self) -> float:
        """Let the time of the only planned action come, and return its pause."""
        [(pause_s, then)] = self.later
        self.later.clear()
        self.now_s += pause_s
        then()
        return pause_s

    def pop(self) -> BrokerRequest:
        [request] = self.link.take()
        assert request.code == Request.POP_MESSAGE
        return request


def record(offset: int, queue: int = 2, body: bytes = b"hello", **properties: str) -> bytes:
    return encode_record(
        b"orders", body, encode_properties(properties).encode(), queue_id=queue, queue_offset=offset,
        physical_offset=9_000 + offset, born_timestamp_ms=1, born_host=HOST, store_timestamp_ms=2, store_host=HOST,
    )  # fmt: skip


def fields(**more: str) -> dict[str, str]:
    starts = {"startOffsetInfo": "0 2 70;1 0 5", "msgOffsetInfo": "0 2 70,71;1 0 5"}
    return {"popTime": str(POP_MS), "invisibleTime": "30000", "reviveQid": "0", "restNum": "0", **starts, **more}


def messages(call: FakeCall) -> list[pb.Message]:
    answers = call.read(pb.ReceiveMessageResponse)
    assert answers[0].status.code == pb.OK
    assert answers[-1].delivery_timestamp.ToMilliseconds() == 1_700_000_000_000
    assert not call.is_open
    return [answer.message for answer in answers[1:-1]]


def refusal(call: FakeCall) -> int:
    status, end = call.read(pb.ReceiveMessageResponse)
    assert end.HasField("delivery_timestamp")
    assert not call.is_open
    return status.status.code


def test_the_broker_is_asked_for_what_the_client_wants() -> None:
    receiver = Receiver()
    receiver.receive(batch_size=7, attempt_id="a-1", filter_expression=pb.FilterExpression(type=pb.TAG, expression="x"))
    pop = receiver.pop()
    assert pop.broker == BROKER
    assert pop.fields == {
        "consumerGroup": "g", "topic": "orders", "queueId": "-1", "maxMsgNums": "7", "invisibleTime": "30000",
        "pollTime": "2000", "bornTime": "0", "initMode": "1", "expType": "TAG", "exp": "x", "attemptId": "a-1",
    }  # fmt: skip
    assert pop.timeout_s == pytest.approx(5.0)


@pytest.mark.parametrize(("asked", "expected"), [(0, "32"), (-5, "32"), (1, "1"), (32, "32"), (1_000_000, "32")])
def test_any_batch_size_is_served(asked: int, expected: str) -> None:
    receiver = Receiver()
    request = receive_request("orders", "g")
    request.batch_size = asked
    receiver.proxy.call("ReceiveMessage", request)
    assert receiver.pop().fields["maxMsgNums"] == expected


@pytest.mark.parametrize(
    ("poll_s", "deadline_s", "expected_ms"),
    [
        (20.0, 23.0, 20_000),
        (2.0, 5.0, 2_000),
        (0.0, None, 0),
        (-3.0, None, 0),
        (10_000.0, None, 240_000),
        (30.0, 10.0, 8_500),  # cut, so that the answer arrives in time
        (3.0, 3.0, 2_000),
        (None, 8.0, 6_500),  # Go's simple consumer
        (None, None, 20_000),
        (5.0, 0.0, 0),
    ],
)
def test_polling_ends_well_before_the_deadline(
    poll_s: float | None, deadline_s: float | None, expected_ms: int
) -> None:
    receiver = Receiver()
    receiver.receive(FakeCall(deadline_s), poll_s)
    assert int(receiver.pop().fields["pollTime"]) == expected_ms


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (pb.FilterExpression(), (None, None)),
        (pb.FilterExpression(type=pb.TAG, expression="*"), (None, None)),
        (pb.FilterExpression(expression="a || b"), ("TAG", "a || b")),
        (pb.FilterExpression(type=pb.SQL, expression="x > 3"), ("SQL92", "x > 3")),
    ],
)
def test_filters_are_passed_on(expression: pb.FilterExpression, expected: tuple[str | None, str | None]) -> None:
    receiver = Receiver()
    receiver.receive(filter_expression=expression)
    asked = receiver.pop().fields
    assert (asked.get("expType"), asked.get("exp")) == expected


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"filter_expression": pb.FilterExpression(expression="x" * 4097)}, pb.ILLEGAL_FILTER_EXPRESSION),
        ({"attempt_id": "x" * 1025}, pb.BAD_REQUEST),
    ],
)
def test_texts_that_would_make_a_header_too_long_are_refused(fields: dict[str, Any], code: int) -> None:
    receiver = Receiver()
    assert refusal(receiver.receive(**fields)) == code
    assert receiver.link.take() == []


def test_a_push_consumer_holds_messages_by_lease() -> None:
    receiver = Receiver()
    request = receive_request("orders", "g", auto_renew=True)
    request.ClearField("invisible_duration")
    receiver.proxy.call("ReceiveMessage", request)
    assert receiver.pop().fields["lease"] == "client-1"
    assert receiver.seen == [("client-1", "g", "10.9.8.7")]


@pytest.mark.parametrize("seconds", [0, 9, 12 * 3600 + 1, -1, 1 << 40])
def test_default_invisible_times_have_limits(seconds: int) -> None:
    receiver = Receiver()
    request = receive_request("orders", "g")
    request.invisible_duration.seconds = seconds
    assert refusal(receiver.proxy.call("ReceiveMessage", request)) == pb.ILLEGAL_INVISIBLE_TIME
    assert receiver.link.take() == []


@pytest.mark.parametrize(("seconds", "is_accepted"), [(1, False), (2, True), (5, True), (6, False)])
def test_the_limits_of_invisible_times_are_settings(seconds: int, is_accepted: bool) -> None:
    receiver = Receiver(min_invisible=Duration(2_000), max_invisible=Duration(5_000))
    request = receive_request("orders", "g")
    request.invisible_duration.seconds = seconds
    assert receiver.proxy.call("ReceiveMessage", request).is_open == is_accepted


@pytest.mark.parametrize(("topic", "group", "broker", "code"), [
    ("", "g", BROKER, pb.ILLEGAL_TOPIC),
    ("a b", "g", BROKER, pb.ILLEGAL_TOPIC),
    ("rmq_sys_x", "g", BROKER, pb.ILLEGAL_TOPIC),
    ("t", "", BROKER, pb.ILLEGAL_CONSUMER_GROUP),
    ("t", "CID_RMQ_SYS_TRANS", BROKER, pb.ILLEGAL_CONSUMER_GROUP),
    ("t", "g" * 121, BROKER, pb.ILLEGAL_CONSUMER_GROUP),
])  # fmt: skip
def test_names_are_checked(topic: str, group: str, broker: str, code: int) -> None:
    receiver = Receiver()
    request = receive_request(topic, group)
    request.message_queue.broker.name = broker
    assert refusal(receiver.proxy.call("ReceiveMessage", request)) == code


def test_messages_arrive_with_handles_between_a_status_and_a_time() -> None:
    receiver = Receiver()
    call = receiver.receive()
    retried = record(5, 0, POP_CK=f"5 {POP_MS} 30000 0 1 {BROKER} 0 5")
    receiver.pop().answer(fields=fields(), body=record(70) + record(71) + retried)
    found = [message.system_properties for message in messages(call)]
    assert [system.receipt_handle for system in found] == [
        f"70 {POP_MS} 30000 0 0 {BROKER} 2 70 9070",
        f"70 {POP_MS} 30000 0 0 {BROKER} 2 71 9071",
        f"5 {POP_MS} 30000 0 1 {BROKER} 0 5 9005",
    ]
    assert receiver.calls.statistics() == {"waiting_receives": 0, "unsent_message_bytes": 0}


def test_a_handle_that_a_sender_invented_is_ignored() -> None:
    receiver = Receiver()
    call = receiver.receive()
    receiver.pop().answer(fields=fields(), body=record(70, POP_CK="1 2 3 4 1 other 5 6"))
    [message] = messages(call)
    assert message.system_properties.receipt_handle == f"70 {POP_MS} 30000 0 0 {BROKER} 2 70 9070"


def test_attempts_of_messages_in_order_come_from_the_broker() -> None:
    receiver = Receiver()
    call = receiver.receive()
    counts = {"orderCountInfo": "0 qo2%71 3;0 2 0", "reviveQid": "999"}
    receiver.pop().answer(fields=fields(**counts), body=record(70) + record(71))
    assert [message.system_properties.delivery_attempt for message in messages(call)] == [1, 4]


@pytest.mark.parametrize("code", [Response.PULL_NOT_FOUND, Response.POLLING_TIMEOUT, Response.SUCCESS])
def test_no_message_is_an_answer_and_not_counted_as_a_refusal(code: int) -> None:
    receiver = Receiver()
    call = receiver.receive()
    receiver.pop().answer(code)
    assert refusal(call) == pb.MESSAGE_NOT_FOUND
    assert not any(receiver.proxy.table.refused.values())


@pytest.mark.parametrize(("code", "expected"), [
    (Response.POLLING_FULL, pb.TOO_MANY_REQUESTS),
    (Response.SYSTEM_BUSY, pb.TOO_MANY_REQUESTS),
    (Response.TOPIC_NOT_EXIST, pb.TOPIC_NOT_FOUND),
    (Response.SUBSCRIPTION_GROUP_NOT_EXIST, pb.CONSUMER_GROUP_NOT_FOUND),
    (Response.SUBSCRIPTION_PARSE_FAILED, pb.ILLEGAL_FILTER_EXPRESSION),
    (Response.NO_PERMISSION, pb.FORBIDDEN),
    (Response.SYSTEM_ERROR, pb.INTERNAL_SERVER_ERROR),
])  # fmt: skip
def test_errors_of_the_broker_have_codes(code: int, expected: int) -> None:
    receiver = Receiver()
    call = receiver.receive()
    receiver.pop().answer(code, remark="why")
    if receiver.later:
        receiver.wait()
    assert refusal(call) == expected


def test_a_broker_that_does_not_answer_is_an_error() -> None:
    receiver = Receiver()
    call = receiver.receive()
    receiver.pop().fail(RequestTimedOut("late"))
    assert not receiver.later  # the client has waited
    assert refusal(call) == pb.PROXY_TIMEOUT


def test_a_lost_broker_is_an_error_after_a_pause_that_spares_clients_in_a_loop() -> None:
    receiver = Receiver()
    call = receiver.receive()
    receiver.pop().fail(ConnectionLost("gone"))
    assert call.is_open
    [(pause_s, then)] = receiver.later
    assert pause_s == 1.0
    then()
    assert refusal(call) == pb.INTERNAL_SERVER_ERROR
    assert receiver.calls.statistics()["waiting_receives"] == 0


@pytest.mark.parametrize(
    ("poll_s", "deadline_s", "expected_s"),
    [
        (20.0, 23.0, 1.0),
        (0.3, None, 0.3),  # as long as the client is willing to wait
        (0.0, 3.0, 0.0),
        (20.0, 0.9, 0.6),  # the answer arrives before the deadline
        (None, None, 1.0),
    ],
)
def test_the_pause_of_an_outage_is_not_longer_than_the_client_waits(
    poll_s: float | None, deadline_s: float | None, expected_s: float
) -> None:
    receiver = Receiver()
    call = receiver.receive(FakeCall(deadline_s), poll_s)
    receiver.pop().fail(ConnectionLost("gone"))
    assert [pause_s for pause_s, _ in receiver.later] == ([pytest.approx(expected_s)] if expected_s else [])
    assert call.is_open == bool(expected_s)


def test_the_pause_of_an_outage_is_a_setting() -> None:
    receiver = Receiver(outage_pause=Duration(2_500))
    receiver.receive()
    receiver.pop().fail(ConnectionLost("gone"))
    assert [pause_s for pause_s, _ in receiver.later] == [2.0]  # the client polls for this long
    receiver.receive(poll_s=10.0)
    receiver.pop().fail(ConnectionLost("gone"))
    assert [pause_s for pause_s, _ in receiver.later] == [2.0, 2.5]


@pytest.mark.parametrize("code", [Response.POLLING_FULL, Response.SYSTEM_BUSY, Response.SERVICE_NOT_AVAILABLE])
def test_a_busy_broker_is_an_error_after_the_same_pause(code: int) -> None:
    receiver = Receiver()
    call = receiver.receive()
    receiver.pop().answer(code)
    assert call.is_open
    receiver.wait()
    assert refusal(call) != pb.OK


def test_a_receive_from_a_broker_that_is_not_registered_is_refused_after_the_same_pause() -> None:
    receiver = Receiver()
    request = receive_request("t", "g")
    request.message_queue.broker.name = "removed"
    call = receiver.proxy.call("ReceiveMessage", request)
    assert call.is_open
    assert receiver.wait() == 1.0
    assert refusal(call) == pb.BAD_REQUEST


def test_clients_in_the_pause_of_an_outage_are_let_go_when_the_proxy_stops() -> None:
    receiver = Receiver()
    call = receiver.receive()
    receiver.pop().fail(ConnectionLost("gone"))
    receiver.calls.release()
    assert refusal(call) == pb.MESSAGE_NOT_FOUND
    receiver.wait()


def test_a_client_that_leaves_during_an_outage_is_forgotten() -> None:
    receiver = Receiver()
    call = receiver.receive()
    receiver.pop().fail(ConnectionLost("gone"))
    call.cancel()
    [(_, then)] = receiver.later
    then()
    assert receiver.calls.statistics()["waiting_receives"] == 0


@pytest.mark.parametrize("more", [{"startOffsetInfo": "0 x 1"}, {"orderCountInfo": "0 1"}, {"popTime": "soon"}])
def test_a_reply_that_makes_no_sense_is_an_error(more: dict[str, str]) -> None:
    receiver = Receiver()
    call = receiver.receive()
    receiver.pop().answer(fields=fields(**more), body=record(70))
    assert refusal(call) == pb.INTERNAL_SERVER_ERROR


def given_back(link: FakeLink) -> list[str]:
    requests = link.take()
    for request in requests:
        assert request.code == Request.CHANGE_MESSAGE_INVISIBLETIME
        assert (request.fields["invisibleTime"], request.fields["suspend"]) == ("0", "true")
    return [f"{request.fields['topic']} {request.fields['offset']}" for request in requests]


def test_messages_for_a_client_that_has_gone_are_given_back() -> None:
    receiver = Receiver()
    call = receiver.receive()
    pop = receiver.pop()
    call.cancel()
    assert [request.code for request in receiver.link.take()] == [Request.CANCEL_POP]
    assert receiver.calls.statistics()["waiting_receives"] == 0
    retried = record(5, 0, POP_CK=f"5 {POP_MS} 30000 0 1 {BROKER} 0 5")
    pop.answer(fields=fields(), body=record(70) + record(71) + retried)
    assert given_back(receiver.link) == ["orders 70", "orders 71", "%RETRY%g_orders 5"]


def return_of_one(receiver: Receiver) -> BrokerRequest:
    """Begin the return of a message, and return the request."""
    call = receiver.receive()
    pop = receiver.pop()
    call.cancel()
    receiver.link.take()
    pop.answer(fields=fields(), body=record(70))
    [request] = receiver.link.take()
    return request


@pytest.mark.parametrize("code", [None, Response.SYSTEM_BUSY, Response.SERVICE_NOT_AVAILABLE])
def test_a_return_that_fails_is_tried_again_until_the_broker_accepts_it(code: int | None) -> None:
    receiver = Receiver()
    request = return_of_one(receiver)
    pauses = []
    for _ in range(6):
        request.fail(ConnectionLost("gone")) if code is None else request.answer(code)
        pauses.append(receiver.wait())
        [again] = receiver.link.take()
        assert (again.broker, again.code, again.fields) == (BROKER, request.code, request.fields)
        request = again
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    request.answer()
    assert not receiver.later
    statistics = receiver.returned.statistics()
    assert (statistics["returned_messages"], statistics["retried_returns"], statistics["dropped_returns"]) == (1, 0, 0)


@pytest.mark.parametrize("code", [Response.NO_MESSAGE, Response.SYSTEM_ERROR, Response.SUCCESS])
def test_a_return_that_another_try_cannot_help_is_not_repeated(code: int) -> None:
    receiver = Receiver()
    return_of_one(receiver).answer(code)
    assert not receiver.later


def test_returns_are_given_up_when_the_time_for_them_is_over() -> None:
    receiver = Receiver(return_timeout=Duration(10_000))
    request = return_of_one(receiver)
    while True:
        request.fail(RequestTimedOut("late"))
        if not receiver.later:
            break
        receiver.wait()
        [request] = receiver.link.take()
    assert 5 <= receiver.now_s <= 10
    assert receiver.returned.statistics()["dropped_returns"] == 1


def test_no_more_returns_than_the_limit_wait_for_another_try() -> None:
    receiver = Receiver(max_returns=2)
    for _ in range(3):
        return_of_one(receiver).fail(ConnectionLost("gone"))
    statistics = receiver.returned.statistics()
    assert (len(receiver.later), statistics["retried_returns"], statistics["dropped_returns"]) == (2, 2, 1)


def test_the_report_of_a_lost_answer_is_tried_again() -> None:
    receiver = Receiver()
    [then] = leased_answer(receiver).read_notices
    then(False)
    [request] = receiver.link.take()
    request.fail(ConnectionLost("gone"))
    receiver.wait()
    [again] = receiver.link.take()
    assert (again.code, again.fields) == (Request.LOST_ANSWER, request.fields)


LARGE = bytes(40_000)


def test_a_slow_client_gets_its_messages_as_it_reads() -> None:
    receiver = Receiver()
    call = receiver.receive(FakeCall(room=2))
    body = b"".join(record(70 + number, body=LARGE) for number in range(6))
    receiver.pop().answer(fields=fields(), body=body)
    assert len(call.answers) == 3  # the status, and two messages in one chunk
    assert receiver.calls.unsent_bytes > 4 * len(LARGE)
    sent = []
    while call.is_open:
        sent.append(len(call.answers))
        call.drain()
    assert len(messages(call)) == 6
    assert sent == sorted(sent)
    assert receiver.calls.unsent_bytes == 0
    assert given_back(receiver.link) == []


def test_what_a_slow_client_has_not_got_when_it_goes_is_given_back() -> None:
    receiver = Receiver()
    call = receiver.receive(FakeCall(room=2))
    receiver.pop().answer(fields=fields(), body=b"".join(record(70 + number, body=LARGE) for number in range(4)))
    call.cancel()
    assert given_back(receiver.link) == ["orders 72", "orders 73"]
    assert receiver.calls.statistics() == {"waiting_receives": 0, "unsent_message_bytes": 0}


def test_slow_clients_hold_no_more_than_the_limit() -> None:
    receiver = Receiver(max_unsent=Size(50_000))
    body = b"".join(record(70 + number, body=LARGE) for number in range(4))
    slow = receiver.receive(FakeCall(room=2))
    receiver.pop().answer(fields=fields(), body=body)
    assert receiver.link.take() == []
    second = receiver.receive(FakeCall(room=2))
    receiver.pop().answer(fields=fields(), body=body)
    assert len(messages(second)) == 2  # it gets no more, and can ask again
    assert given_back(receiver.link) == ["orders 72", "orders 73"]
    slow.cancel()
    assert receiver.calls.unsent_bytes == 0


def test_waiting_clients_are_let_go_when_the_proxy_stops() -> None:
    receiver = Receiver()
    waiting = [receiver.receive(), receiver.receive()]
    pops = receiver.link.take()
    receiver.calls.release()
    assert [refusal(call) for call in waiting] == [pb.MESSAGE_NOT_FOUND] * 2
    cancels = receiver.link.take()
    assert [(request.code, request.fields) for request in cancels] == [
        (Request.CANCEL_POP, {"pop": "1"}),
        (Request.CANCEL_POP, {"pop": "2"}),
    ]
    assert refusal(receiver.receive()) == pb.MESSAGE_NOT_FOUND
    assert receiver.link.take() == []
    pops[0].answer(fields=fields(), body=record(70))
    assert given_back(receiver.link) == ["orders 70"]


def test_records_that_cannot_be_read_end_the_call_after_those_that_can() -> None:
    receiver = Receiver()
    call = receiver.receive()
    receiver.pop().answer(fields=fields(), body=record(70) + record(71)[:-3])
    assert not call.is_open
    assert len(messages(call)) == 1
    assert receiver.calls.statistics() == {"waiting_receives": 0, "unsent_message_bytes": 0}


def leased_answer(receiver: Receiver, call: FakeCall | None = None) -> FakeCall:
    call = receiver.receive(call, auto_renew=True)
    receiver.pop().answer(fields=fields(), body=record(70) + record(71, body=b"x" * 100_000))
    return call


@pytest.mark.parametrize("is_read", [True, False])
def test_an_answer_with_a_lease_that_is_lost_with_its_connection_is_reported(is_read: bool) -> None:
    receiver = Receiver()
    call = leased_answer(receiver)
    assert not receiver.link.take()
    [then] = call.read_notices
    then(is_read)
    lost = [(request.code, request.broker, request.fields) for request in receiver.link.take()]
    expected = {"group": "g", "clientId": "client-1", "popTime": str(POP_MS)}
    assert lost == ([] if is_read else [(Request.LOST_ANSWER, BROKER, expected)])


def test_what_was_sent_of_a_cancelled_answer_with_a_lease_is_reported_and_the_rest_returned() -> None:
    receiver = Receiver()
    call = leased_answer(receiver, FakeCall(room=1))
    assert call.on_cancel is not None
    call.is_open = False
    call.on_cancel()
    codes = [request.code for request in receiver.link.take()]
    assert codes == [Request.CHANGE_MESSAGE_INVISIBLETIME] * 2 + [Request.LOST_ANSWER]


def test_an_answer_without_a_lease_needs_no_report() -> None:
    receiver = Receiver()
    call = receiver.receive()
    receiver.pop().answer(fields=fields(), body=record(70))
    assert not call.read_notices


def test_the_pop_of_a_cancelled_receive_is_cancelled_at_the_broker_and_what_it_found_returned() -> None:
    receiver = Receiver()
    call = receiver.receive()
    pop = receiver.pop()
    assert call.on_cancel is not None
    call.is_open = False
    call.on_cancel()
    [cancel] = receiver.link.take()
    assert (cancel.broker, cancel.code, cancel.fields) == (BROKER, Request.CANCEL_POP, {"pop": "1"})
    pop.answer(fields=fields(), body=record(70))
    assert [request.code for request in receiver.link.take()] == [Request.CHANGE_MESSAGE_INVISIBLETIME]
