"""The producer and its connections when servers fail: retries, timeouts, limits and error messages."""

import asyncio
import time
from collections.abc import Callable, Coroutine

import pytest

from latermq.client import (
    BrokerFailed,
    ClientClosed,
    ConnectionLost,
    NoNameServer,
    OutgoingMessage,
    Producer,
    PullConsumer,
    RequestTimedOut,
    SendResult,
)
from latermq.client.session.connection import STOPPED_S, SWEEP_S, Connections
from latermq.errors import Busy, IllegalMessage, ServiceUnavailable, TopicNotFound
from latermq.message.properties import decode_properties
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command, encode_response
from tests.interop.ports import free_port
from tests.support.scripted_server import (
    DISCONNECT,
    HOST,
    Answer,
    error_response,
    eventually,
    scripted_server,
    stored_response,
)

MESSAGE = OutgoingMessage("t", b"body")


def run(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def answer_first(first: Callable[[Command], Answer], count: int = 1) -> Callable[[Command], Answer]:
    """Answer the first `count` requests with `first`, and all others as stored."""
    remaining = [count]

    def script(request: Command) -> Answer:
        remaining[0] -= 1
        return first(request) if remaining[0] >= 0 else stored_response(request)

    return script


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17])
def test_a_retried_send_keeps_its_unique_key(code: int) -> None:
    async def scenario() -> None:
        async with (
            scripted_server(answer_first(error_response(code), 2)) as server,
            Producer(server.address) as producer,
        ):
            result = await producer.send(MESSAGE)
            keys = {decode_properties(header.properties)["UNIQ_KEY"] for header in server.sends()}
            assert keys == {result.message_id}
            assert len(server.sends()) == 3
            assert producer.statistics()["retried"] == 2

    run(scenario)


def test_the_number_of_retries_is_limited() -> None:
    async def scenario() -> None:
        async with (
            scripted_server(error_response(Response.SERVICE_NOT_AVAILABLE)) as server,
            Producer(server.address, retries=1) as producer,
        ):
            with pytest.raises(ServiceUnavailable, match="not now"):
                await producer.send(MESSAGE)
            assert len(server.sends()) == 2
            assert producer.statistics()["in_flight"] == 0

    run(scenario)


def test_an_illegal_message_is_not_retried() -> None:
    async def scenario() -> None:
        async with (
            scripted_server(error_response(Response.MESSAGE_ILLEGAL)) as server,
            Producer(server.address) as producer,
        ):
            with pytest.raises(IllegalMessage):
                await producer.send(MESSAGE)
            assert len(server.sends()) == 1

    run(scenario)


def test_a_retry_goes_to_another_broker_if_there_is_one() -> None:
    async def scenario() -> None:
        async with (
            scripted_server(error_response(Response.SYSTEM_BUSY)) as busy,
            scripted_server(stored_response) as idle,
            Producer(busy.address) as producer,
        ):
            busy.brokers = {"busy": busy.address, "idle": idle.address}
            results = [await producer.send(MESSAGE) for _ in range(8)]
            assert {result.queue.brokerName for result in results} == {"idle"}
            assert producer.statistics()["retried"] == len(busy.sends()) > 0

    run(scenario)


def test_an_unreachable_broker_is_skipped() -> None:
    async def scenario() -> None:
        async with scripted_server(stored_response) as server, Producer(server.address) as producer:
            server.brokers = {"gone": f"{HOST}:{free_port()}", "here": server.address}
            results = [await producer.send(MESSAGE) for _ in range(4)]
            assert {result.queue.brokerName for result in results} == {"here"}

    run(scenario)


def test_sends_survive_a_lost_connection() -> None:
    async def scenario() -> None:
        script = answer_first(lambda request: DISCONNECT)
        async with scripted_server(script) as server, Producer(server.address) as producer:
            results = await asyncio.gather(*(producer.submit(MESSAGE) for _ in range(50)))
            assert all(result.status == "SEND_OK" for result in results)
            assert server.count(Request.GET_ROUTEINFO_BY_TOPIC) >= 2, "a failure must make the route be asked again"

    run(scenario)


def test_sends_of_a_shard_keep_their_order_even_before_the_route_is_known() -> None:
    async def scenario() -> None:
        async with scripted_server(stored_response) as server, Producer(server.address) as producer:
            futures = []
            for number in range(100):
                futures.append(producer.submit(OutgoingMessage("t", b"%d" % number), shard="s"))
                if number % 10 == 0:
                    await asyncio.sleep(0)
            await asyncio.gather(*futures)
            bodies = [request.body for request in server.requests if request.code == Request.SEND_MESSAGE_V2]
            assert bodies == [b"%d" % number for number in range(100)]
            assert len({header.queueId for header in server.sends()}) == 1

    run(scenario)


def test_a_send_without_a_response_times_out_and_the_error_says_what_is_unknown() -> None:
    async def scenario() -> None:
        async with scripted_server(lambda request: None) as server, Producer(server.address) as producer:
            with pytest.raises(RequestTimedOut) as caught:
                await producer.send(MESSAGE, timeout_s=0.2)
            assert "may have been stored" in caught.value.remark

    run(scenario)


@pytest.mark.parametrize(
    ("code", "status"), [(10, "FLUSH_DISK_TIMEOUT"), (11, "SLAVE_NOT_AVAILABLE"), (12, "FLUSH_SLAVE_TIMEOUT")]
)
def test_a_weaker_guarantee_is_reported_in_the_status(code: int, status: str) -> None:
    def script(request: Command) -> Answer:
        return encode_response(request, code, fields={"msgId": "X", "queueId": "0", "queueOffset": "1"})

    async def scenario() -> None:
        async with scripted_server(script) as server, Producer(server.address) as producer:
            assert (await producer.send(MESSAGE)).status == status

    run(scenario)


def test_a_malformed_response_fails_only_its_own_send() -> None:
    def script(request: Command) -> Answer:
        return encode_response(request, fields={"msgId": "00" * 16, "queueId": "many"})

    async def scenario() -> None:
        async with (
            scripted_server(answer_first(script)) as server,
            Producer(server.address, send_timeout_s=5) as producer,
        ):
            bad, good = await asyncio.gather(*(producer.send(MESSAGE) for _ in range(2)), return_exceptions=True)
            assert isinstance(bad, BrokerFailed)
            assert "stored the message, but its response is malformed" in str(bad)
            assert isinstance(good, SendResult)
            assert len(server.sends()) == 2
            assert producer.statistics()["in_flight"] == 0

    run(scenario)


def test_the_number_in_flight_is_bounded() -> None:
    async def scenario() -> None:
        held: list[Command] = []

        def script(request: Command) -> Answer:
            held.append(request)
            return None

        async with scripted_server(script) as server, Producer(server.address, max_in_flight=3) as producer:
            futures = [producer.submit(MESSAGE) for _ in range(3)]
            assert producer.is_full
            with pytest.raises(Busy) as caught:
                producer.submit(MESSAGE)
            assert "producer.ready()" in caught.value.hint
            tasks = [asyncio.create_task(producer.send(MESSAGE)) for _ in range(2)]
            await eventually(lambda: len(held) == 3, "three sends at the server")
            server.script = stored_response
            for request in held:
                server.connections[-1].write(stored_response(request))
            await asyncio.gather(*futures, *tasks)
            assert producer.statistics()["in_flight_bytes"] == 0

    run(scenario)


def test_a_cancelled_waiter_passes_its_turn_to_the_next() -> None:
    async def scenario() -> None:
        held: list[Command] = []

        def script(request: Command) -> Answer:
            held.append(request)
            return None

        async with scripted_server(script) as server, Producer(server.address, max_in_flight=1) as producer:
            first = producer.submit(MESSAGE)
            second, third = (asyncio.create_task(producer.send(MESSAGE)) for _ in range(2))
            await eventually(lambda: held, "a send at the server")
            first.add_done_callback(lambda done: second.cancel())
            server.script = stored_response
            server.connections[-1].write(stored_response(held[0]))
            assert (await third).status == "SEND_OK"
            assert second.cancelled()

    run(scenario)


def test_the_bytes_in_flight_are_bounded_but_one_message_always_fits() -> None:
    async def scenario() -> None:
        async with (
            scripted_server(stored_response) as server,
            Producer(server.address, max_in_flight_bytes=1000, compress_above_bytes=None) as producer,
        ):
            large = producer.submit(OutgoingMessage("t", bytes(5000)))
            with pytest.raises(Busy):
                producer.submit(MESSAGE)
            await large
            await producer.send(MESSAGE)

    run(scenario)


def test_a_body_above_the_limit_is_refused_with_a_hint() -> None:
    async def scenario() -> None:
        async with (
            scripted_server(stored_response) as server,
            Producer(server.address, max_message_bytes=10) as producer,
        ):
            for body in (bytes(11), bytes(1000)):
                with pytest.raises(IllegalMessage, match="the limit is 10"):
                    producer.submit(OutgoingMessage("t", body))
            with pytest.raises(IllegalMessage, match="the limit is 10"):
                await producer.send_oneway(OutgoingMessage("t", bytes(11)))
            with pytest.raises(IllegalMessage, match="the limit is 10"):
                await producer.send_batch([OutgoingMessage("t", bytes(5))])

    run(scenario)


def test_an_empty_body_is_refused() -> None:
    async def scenario() -> None:
        async with scripted_server(stored_response) as server, Producer(server.address) as producer:
            empty = OutgoingMessage("t", b"")
            with pytest.raises(IllegalMessage, match="empty"):
                producer.submit(empty)
            with pytest.raises(IllegalMessage, match="empty"):
                await producer.send_oneway(empty)
            with pytest.raises(IllegalMessage, match="empty"):
                await producer.send_batch([MESSAGE, empty])

    run(scenario)


def test_an_unknown_topic_fails_at_once_without_auto_creation() -> None:
    async def scenario() -> None:
        async with scripted_server(stored_response) as server, Producer(server.address) as producer:
            original = server.answer

            def answer(request: Command) -> Answer:
                if request.code == Request.GET_ROUTEINFO_BY_TOPIC:
                    return error_response(Response.TOPIC_NOT_EXIST, "no such topic")(request)
                if request.code == Request.GET_BROKER_CLUSTER_INFO:
                    broker = b'{"cluster":"c","brokerName":"a","brokerAddrs":{"0":"h:1"}}'
                    return encode_response(request, body=b'{"brokerAddrTable":{"a":%b}}' % broker)
                return original(request)

            server.answer = answer  # type: ignore[method-assign]
            with pytest.raises(TopicNotFound, match="no such topic"):
                await producer.send(MESSAGE, timeout_s=30)

    run(scenario)


def test_a_topic_whose_brokers_are_briefly_down_is_not_considered_deleted() -> None:
    async def scenario() -> None:
        async with scripted_server(stored_response) as server, Producer(server.address, send_timeout_s=30) as producer:
            await producer.send(MESSAGE)
            original = server.answer
            lookups: list[Command] = []

            def without_brokers(request: Command) -> Answer:
                if request.code == Request.GET_ROUTEINFO_BY_TOPIC:
                    lookups.append(request)
                    return error_response(Response.TOPIC_NOT_EXIST, "no such topic")(request)
                if request.code == Request.GET_BROKER_CLUSTER_INFO:
                    return encode_response(request, body=b'{"brokerAddrTable":{},"clusterAddrTable":{}}')
                if request.code == Request.SEND_MESSAGE_V2 and len(lookups) < 2:
                    return DISCONNECT
                return original(request)

            server.answer = without_brokers  # type: ignore[method-assign]
            assert (await producer.send(MESSAGE)).status == "SEND_OK"

    run(scenario)


def test_a_first_send_waits_for_a_broker_to_register() -> None:
    async def scenario() -> None:
        async with scripted_server(stored_response) as server, Producer(server.address, send_timeout_s=30) as producer:
            original = server.answer
            lookups: list[Command] = []

            def without_brokers_at_first(request: Command) -> Answer:
                if request.code == Request.GET_ROUTEINFO_BY_TOPIC and len(lookups) < 3:
                    return error_response(Response.TOPIC_NOT_EXIST, "no such topic")(request)
                if request.code == Request.GET_BROKER_CLUSTER_INFO:
                    lookups.append(request)
                    return encode_response(request, body=b'{"brokerAddrTable":{},"clusterAddrTable":{}}')
                return original(request)

            server.answer = without_brokers_at_first  # type: ignore[method-assign]
            assert (await producer.send(MESSAGE)).status == "SEND_OK"
            assert len(lookups) == 3

    run(scenario)


def test_without_a_name_server_the_error_says_what_to_do() -> None:
    async def scenario() -> None:
        address = f"{HOST}:{free_port()}"
        async with Producer(address) as producer:
            with pytest.raises(NoNameServer) as caught:
                await producer.send(MESSAGE, timeout_s=0.3)
        assert f"no name server answers at {address}; is `latermq serve` running?" in str(caught.value)

    run(scenario)


def test_another_name_server_is_used_when_one_is_down() -> None:
    async def scenario() -> None:
        async with scripted_server(stored_response) as server:
            namesrv = f"{HOST}:{free_port()};{server.address}"
            async with PullConsumer(namesrv) as consumer:
                assert len(await consumer.queues("t")) == server.queues

    run(scenario)


def test_a_closed_or_unstarted_client_raises_an_error() -> None:
    async def scenario() -> None:
        async with scripted_server(stored_response) as server:
            consumer = PullConsumer(server.address)
            with pytest.raises(ClientClosed, match="not started"):
                await consumer.queues("t")
            async with consumer:
                await consumer.queues("t")
            with pytest.raises(ClientClosed, match="closed"):
                await consumer.queues("t")
            with pytest.raises(ClientClosed, match="already started"):
                await consumer.start()

    run(scenario)


def test_frames_of_one_tick_are_sent_in_one_write() -> None:
    async def scenario() -> None:
        async with scripted_server(stored_response) as server:
            connections = Connections(on_request=lambda connection, request: None)
            connection = await connections.open(server.address)
            writes: list[bytes] = []
            transport = connection._transport
            assert transport is not None
            transport.write = writes.append  # type: ignore[method-assign, assignment]
            for _ in range(5):
                connection.send(b"frame")
            await asyncio.sleep(0)
            assert writes == [b"frame" * 5]
            await connections.close()

    run(scenario)


def test_a_lost_connection_fails_its_pending_requests() -> None:
    async def scenario() -> None:
        async with scripted_server(lambda request: DISCONNECT) as server:
            connections = Connections(on_request=lambda connection, request: None)
            with pytest.raises(ConnectionLost, match="was lost"):
                await connections.call(server.address, 999)
            assert connections.statistics() == {"connections": 0, "pending_connections": 0, "pending_requests": 0}
            await connections.close()

    run(scenario)


def test_answers_that_arrive_while_the_process_is_stopped_count() -> None:
    async def scenario() -> None:
        async with scripted_server(lambda request: encode_response(request, Response.SUCCESS)) as server:
            connections = Connections(on_request=lambda connection, command: None)
            connection = await connections.open(server.address)
            call = asyncio.create_task(connections.call(server.address, Request.SEND_MESSAGE_V2, timeout_s=0.3))
            await asyncio.sleep(0)
            time.sleep(STOPPED_S + SWEEP_S + 0.2)  # noqa: ASYNC251 - stops both sides, as a suspended machine does
            assert (await call).code == 0
            assert connection.is_open
            await connections.close()

    run(scenario)


def test_pending_requests_per_server_are_bounded() -> None:
    async def scenario() -> None:
        async with scripted_server(lambda request: None) as server:
            connections = Connections(on_request=lambda connection, request: None, max_pending=1)
            first = asyncio.create_task(connections.call(server.address, 999, timeout_s=0.3))
            await eventually(lambda: connections.statistics()["pending_requests"] == 1, "a request that waits")
            with pytest.raises(Busy):
                await connections.call(server.address, 999)
            with pytest.raises(RequestTimedOut):
                await first
            await connections.close()

    run(scenario)


def test_connection_attempts_back_off_and_are_shared() -> None:
    async def scenario() -> None:
        connections = Connections(on_request=lambda connection, request: None)
        address = f"{HOST}:{free_port()}"
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for _ in range(3):
            results = await asyncio.gather(*(connections.open(address) for _ in range(5)), return_exceptions=True)
            assert all(isinstance(result, ConnectionLost) for result in results)
        assert loop.time() - began_s >= 0.1 + 0.2
        await connections.close()

    run(scenario)
