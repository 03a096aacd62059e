"""The client's timer calls: their requests, the brokers they go to, and how outcomes are merged."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest

from latermq.client import Admin, NoBroker, OutgoingMessage, Producer, blocking
from latermq.client.producer.outgoing import encode_message_properties
from latermq.client.session.failures import ConnectionLost
from latermq.client.timers import merge_outcomes
from latermq.errors import IllegalMessage, IllegalOperation, ServiceUnavailable
from latermq.message.properties import decode_properties
from latermq.message.recall_handle import encode_recall_handle
from latermq.model.timers import Density, Outcome, PendingPage, PendingTimer, Verdict
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.routes import BrokerData, ClusterInfo
from latermq.protocol.remoting.timers import (
    ListTimersHeader,
    PendingCount,
    encode_density,
    encode_outcomes,
    encode_page,
)
from tests.support.scripted_server import DISCONNECT, Answer, Script, ScriptedServer, scripted_server, stored_response

KEY = "7F0000010F2A0001"


def run(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def outcome(verdict: Verdict, due_ms: int = 0, timers: int = 0, unique_key: str = KEY) -> Outcome:
    return Outcome(verdict, "orders", unique_key, due_ms, timers)


def timer(number: int, due_ms: int) -> PendingTimer:
    return PendingTimer(number, "orders", f"U{number}", "", "", due_ms, 0, 1, 4, "body")


def answer_with(*outcomes: Outcome) -> Script:
    return lambda request: encode_response(request, body=encode_outcomes(outcomes))


@asynccontextmanager
async def two_brokers(first: Script, second: Script) -> AsyncIterator[tuple[ScriptedServer, ScriptedServer]]:
    """Brokers a and b. The first one is also the name server."""
    async with scripted_server(first) as server, scripted_server(second) as other:
        server.brokers = {"broker-a": server.address, "broker-b": other.address}
        yield server, other


@pytest.mark.parametrize(
    ("message", "scheduled"),
    [
        (OutgoingMessage("t", b"x"), {}),
        (OutgoingMessage("t", b"x", delay_ms=90_000), {"TIMER_DELAY_MS": "90000"}),
        (OutgoingMessage("t", b"x", deliver_at_ms=1_798_732_800_000), {"TIMER_DELIVER_MS": "1798732800000"}),
        (OutgoingMessage("t", b"x", delay_level=3), {"DELAY": "3"}),
        (OutgoingMessage("t", b"x", properties={"DELAY": "4"}), {"DELAY": "4"}),
    ],
)
def test_a_due_time_is_one_property(message: OutgoingMessage, scheduled: dict[str, str]) -> None:
    assert decode_properties(encode_message_properties(message, KEY)) == {"UNIQ_KEY": KEY, **scheduled}


def test_a_message_has_one_due_time() -> None:
    with pytest.raises(IllegalMessage, match="only one of delay_ms"):
        encode_message_properties(OutgoingMessage("t", b"x", delay_ms=5, delay_level=3), KEY)


@pytest.mark.parametrize("handle", ["", "djEgLi4u"])
def test_the_handle_of_a_timer_is_in_the_result_of_its_send(handle: str) -> None:
    def script(request: Command) -> Answer:
        fields = {"msgId": "00", "queueId": "0", "queueOffset": "7"} | ({"recallHandle": handle} if handle else {})
        return encode_response(request, fields=fields)

    async def scenario() -> None:
        async with scripted_server(script) as server, Producer(server.address) as producer:
            assert (await producer.send(OutgoingMessage("orders", b"x", delay_ms=5))).recall_handle == handle

    run(scenario)


def test_a_recall_goes_to_the_broker_in_its_handle() -> None:
    def answer_recall(request: Command) -> Answer:
        return encode_response(request, fields={"msgId": KEY})

    async def scenario() -> None:
        async with two_brokers(stored_response, answer_recall) as (server, other):
            async with Producer(server.address, group="shop") as producer:
                handle = encode_recall_handle("orders", "broker-b", 5, KEY)
                assert await producer.recall("orders", handle) == KEY
                with pytest.raises(NoBroker, match="broker-c"):
                    await producer.recall("orders", encode_recall_handle("orders", "broker-c", 5, KEY))
            [request] = [request for request in other.requests if request.code == Request.RECALL_MESSAGE]
            assert request.text_fields() == {"producerGroup": "shop", "topic": "orders", "recallHandle": handle}
            assert server.count(Request.RECALL_MESSAGE) == 0

    run(scenario)


def test_a_recall_without_a_pending_timer_is_an_error() -> None:
    def refuse(request: Command) -> Answer:
        return encode_response(request, Response.ILLEGAL_OPERATION, remark="nothing was recalled: already delivered")

    async def scenario() -> None:
        async with scripted_server(refuse) as server, Producer(server.address) as producer:
            with pytest.raises(IllegalOperation, match="already delivered"):
                await producer.recall("orders", encode_recall_handle("orders", "broker-a", 5, KEY))
            with pytest.raises(IllegalOperation, match="recall handle is invalid"):
                await producer.recall("orders", "no handle")

    run(scenario)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([Verdict.NOT_FOUND, Verdict.CANCELLED], Verdict.CANCELLED),
        ([Verdict.CANCELLED, Verdict.DELIVERED], Verdict.CANCELLED),
        ([Verdict.DELIVERED, Verdict.ACCEPTED], Verdict.ACCEPTED),
        ([Verdict.NOT_FOUND, Verdict.DELIVERED], Verdict.DELIVERED),
        ([Verdict.NOT_FOUND, Verdict.NOT_FOUND], Verdict.NOT_FOUND),
    ],
)
def test_a_cancel_calls_every_broker_of_the_topic_and_returns_the_outcome(
    verdicts: list[Verdict], expected: Verdict
) -> None:
    async def scenario() -> None:
        first, second = (answer_with(outcome(verdict, due_ms=9)) for verdict in verdicts)
        async with two_brokers(first, second) as (server, other):
            async with Admin(server.address) as admin:
                [merged] = await admin.cancel_timer("orders", unique_key=KEY)
            assert merged.verdict == expected
            assert (server.count(Request.CANCEL_TIMER), other.count(Request.CANCEL_TIMER)) == (1, 1)

    run(scenario)


def test_timers_of_one_name_on_several_brokers_are_summed() -> None:
    order = (Verdict.CANCELLED, Verdict.DELIVERED)
    verdicts = [
        outcome(Verdict.DELIVERED, timers=4),
        outcome(Verdict.CANCELLED, due_ms=7, timers=1),
        outcome(Verdict.CANCELLED, due_ms=8, timers=2),
        outcome(Verdict.DELIVERED, unique_key="other"),
    ]
    assert merge_outcomes(verdicts, order) == [
        outcome(Verdict.CANCELLED, due_ms=7, timers=3),
        outcome(Verdict.DELIVERED, unique_key="other"),
    ]


def test_a_handle_is_cancelled_only_at_its_broker() -> None:
    async def scenario() -> None:
        elsewhere, here = answer_with(outcome(Verdict.NOT_FOUND)), answer_with(outcome(Verdict.CANCELLED))
        async with two_brokers(elsewhere, here) as (server, _other):
            async with Admin(server.address) as admin:
                handle = encode_recall_handle("orders", "broker-b", 5, KEY)
                [cancelled] = await admin.cancel_timer("orders", handle=handle)
                with pytest.raises(NoBroker, match="broker-c"):
                    await admin.cancel_timer("orders", handle=encode_recall_handle("orders", "broker-c", 5, KEY))
            assert cancelled.verdict == Verdict.CANCELLED
            assert server.count(Request.CANCEL_TIMER) == 0

    run(scenario)


def test_the_error_for_a_failed_broker_says_how_many_answered() -> None:
    def refuse(request: Command) -> Answer:
        return encode_response(request, Response.SERVICE_NOT_AVAILABLE, remark="stopping")

    async def scenario() -> None:
        async with two_brokers(answer_with(outcome(Verdict.CANCELLED)), refuse) as (server, _other):
            async with Admin(server.address) as admin:
                with pytest.raises(ServiceUnavailable, match="stopping") as caught:
                    await admin.cancel_timer("orders", key="4711")
            assert caught.value.hint.startswith("1 of 2 brokers have answered")

    run(scenario)


def test_a_move_has_a_due_time_or_a_delay() -> None:
    async def scenario() -> None:
        script = answer_with(outcome(Verdict.MOVED, due_ms=99, timers=1))
        async with scripted_server(script) as server, Admin(server.address) as admin:
            assert await admin.move_timer("orders", key="4711", due_ms=99) == [outcome(Verdict.MOVED, 99, 1)]
            await admin.move_timer("orders", unique_key=KEY, delay_ms=0)
            sent = [request.text_fields() for request in server.requests if request.code == Request.MOVE_TIMER]
            assert sent == [
                {"topic": "orders", "key": "4711", "dueMs": "99"},
                {"topic": "orders", "uniqueKey": KEY, "delayMs": "0"},
            ]

    run(scenario)


def test_an_ambiguous_call_is_refused() -> None:
    async def scenario() -> None:
        async with scripted_server(stored_response) as server, Admin(server.address) as admin:
            for error_response in (
                admin.cancel_timer("orders"),
                admin.cancel_timer("orders", key="4711", unique_key=KEY),
                admin.timer_status("orders"),
                admin.move_timer("orders", key="4711"),
                admin.move_timer("orders", key="4711", due_ms=1, delay_ms=1),
            ):
                with pytest.raises(ValueError, match="timer"):
                    await error_response
            assert server.requests == []

    run(scenario)


def test_a_status_prefers_pending_timers() -> None:
    async def scenario() -> None:
        cancelled = answer_with(outcome(Verdict.CANCELLED))
        pending = answer_with(outcome(Verdict.PENDING, due_ms=5, timers=1))
        async with two_brokers(cancelled, pending) as (server, _other), Admin(server.address) as admin:
            assert await admin.timer_status("orders", unique_key=KEY) == outcome(Verdict.PENDING, 5, 1)

    run(scenario)


def answer_in_pages(timers: list[PendingTimer], page_timers: int) -> Script:
    """A broker that lists these timers in pages."""

    def script(request: Command) -> Answer:
        if request.code == Request.COUNT_TIMERS:
            return encode_response(request, body=encode_body(PendingCount(timers=len(timers))))
        if request.code == Request.TIMER_DENSITY:
            density = Density(1000 - len(timers), [len(timers), 1], [2], [])
            return encode_response(request, body=encode_density(density))
        header = request.header(ListTimersHeader)
        start = int(header.cursor or 0)
        end = start + min(page_timers, header.limit)
        page = PendingPage(timers[start:end], str(end) if end < len(timers) else "")
        return encode_response(request, body=encode_page(page))

    return script


def test_pages_of_all_brokers_are_merged_by_due_time() -> None:
    first = [timer(number, 10 * number) for number in range(5)]
    second = [timer(number, 10 * number + 5) for number in range(3)]

    async def scenario() -> None:
        async with two_brokers(answer_in_pages(first, 2), answer_in_pages(second, 100)) as (server, _other):
            async with Admin(server.address) as admin:
                timers = await admin.pending_timers("orders")
                assert [timer.due_ms for timer in timers] == [0, 5, 10, 15, 20, 25, 30, 40]
                first_timers = await admin.pending_timers("orders", key="k", from_ms=1, until_ms=2, limit=3)
                assert first_timers == timers[:3]
                assert await admin.count_timers("orders") == 8
            requests = [request.text_fields() for request in server.requests if request.code == Request.LIST_TIMERS]
            filters = {"topic": "orders", "key": "k", "fromMs": "1", "untilMs": "2"}
            assert requests[-2:] == [filters | {"limit": "3", "cursor": ""}, filters | {"limit": "1", "cursor": "2"}]

    run(scenario)


def test_without_a_topic_all_brokers_are_called() -> None:
    async def scenario() -> None:
        script = answer_in_pages([timer(1, 5)], 10)
        async with scripted_server(script) as other:

            def with_cluster(request: Command) -> Answer:
                if request.code != Request.GET_BROKER_CLUSTER_INFO:
                    return script(request)
                addresses = {"broker-a": server.address, "broker-b": other.address}
                brokers = {
                    name: BrokerData(cluster="c", brokerName=name, brokerAddrs={0: address})
                    for name, address in addresses.items()
                }
                return encode_response(request, body=encode_body(ClusterInfo(brokerAddrTable=brokers)))

            async with scripted_server(with_cluster) as server, Admin(server.address) as admin:
                assert await admin.count_timers() == 2
                assert len(await admin.pending_timers()) == 2
                assert await admin.timer_density() == Density(999, [2, 2], [4], [])

    run(scenario)


def test_the_blocking_client_has_the_same_methods() -> None:
    for plain, other in ((Admin, blocking.Admin), (Producer, blocking.Producer)):
        names = {name for name in dir(plain) if not name.startswith("_")} - {"is_full", "ready"}
        assert names <= set(dir(other))


def test_after_a_lost_connection_a_cancel_is_repeated_and_a_move_is_not() -> None:
    lost: set[int] = set()

    def disconnect_once(request: Command) -> Answer:
        if request.code not in lost:
            lost.add(request.code)
            return DISCONNECT
        return answer_with(outcome(Verdict.CANCELLED, timers=1))(request)

    async def scenario() -> None:
        async with scripted_server(disconnect_once) as server, Admin(server.address, request_timeout_s=10) as admin:
            server.brokers = {"broker-a": server.address}
            [cancelled] = await admin.cancel_timer("orders", unique_key=KEY)
            assert (cancelled.verdict, server.count(Request.CANCEL_TIMER)) == (Verdict.CANCELLED, 2)
            with pytest.raises(ConnectionLost):
                await admin.move_timer("orders", unique_key=KEY, due_ms=5)
            assert server.count(Request.MOVE_TIMER) == 1

    run(scenario)
