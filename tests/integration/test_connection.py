"""What a service may rely on: one call a command, one settling a read, calls to clients, errors that end nothing."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest
import uvloop
from structlog.testing import capture_logs

from latermq.clock import SystemClock
from latermq.config import ServerConfig
from latermq.errors import Busy
from latermq.message.ids import pack_host
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import FLAG_RESPONSE, Command, encode_frame, encode_response
from latermq.server.remoting.connection import MAX_CALLS, Connection
from latermq.server.remoting.listener import Listener
from tests.integration.raw_client import connect, eventually

ECHO, FAIL, LATER, NO_REPLY = 1, 2, 3, 4


class Recorder:
    """A service that notes what it is told."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.served: list[int] = []
        self.turn_ends: list[int] = []
        self.drains = 0
        self.disconnects = 0

    def on_connect(self, connection: Connection) -> None:
        self.connections.append(connection)

    def serve(self, connection: Connection, command: Command) -> bytes | None:
        self.served.append(command.opaque)
        if command.code == FAIL:
            raise ZeroDivisionError("a mistake of the service")
        if command.code == ECHO:
            return encode_response(command, body=command.body)
        if command.code == LATER:
            asyncio.get_running_loop().call_soon(connection.send, encode_response(command, body=b"later"))
        return None

    def on_turn_end(self) -> None:
        self.turn_ends.append(len(self.served))

    def on_drained(self, connection: Connection) -> None:
        self.drains += 1

    def on_disconnect(self, connection: Connection) -> None:
        self.disconnects += 1


Scenario = Callable[[Recorder, Listener], Coroutine[None, None, None]]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    def run_scenario(scenario: Scenario) -> None:
        async def main() -> None:
            async with listening() as (service, listener):
                await scenario(service, listener)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return run_scenario


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Recorder, Listener]]:
    service = Recorder()
    listener = Listener(service, ServerConfig(max_connections=100), SystemClock())
    await listener.start("127.0.0.1", 0)
    try:
        yield service, listener
    finally:
        await listener.close()
        assert service.disconnects == len(service.connections)
        assert listener.statistics()["connections"] == 0


def test_commands_of_one_read_are_settled_once(run: Callable[[Scenario], None]) -> None:
    async def scenario(service: Recorder, listener: Listener) -> None:
        async with connect(listener.port) as client:
            await client.send(b"".join(encode_frame(ECHO, opaque) for opaque in range(100)))
            assert [(await client.receive()).opaque for _ in range(100)] == list(range(100))
        assert service.served == list(range(100))
        assert service.turn_ends == [100]
        assert listener.statistics()["received_frames"] == 100

    run(scenario)


def test_a_connection_that_always_has_more_to_read_lets_others_have_their_turn(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(service: Recorder, listener: Listener) -> None:
        turns = 0
        turns_at_reads: list[int] = []

        async def take_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        service.on_turn_end = lambda: turns_at_reads.append(turns)  # type: ignore[method-assign]
        others = asyncio.create_task(take_turns())
        frame = encode_frame(NO_REPLY, 1, body=bytes(1000))
        async with connect(listener.port) as client:
            await client.send(frame * 20_000)
            await client.call(ECHO)
        others.cancel()
        assert len(service.served) == 20_001
        most = max(turns_at_reads.count(turn) for turn in set(turns_at_reads))
        assert most <= 2, f"{most} reads in one turn"

    run(scenario)


def test_an_answer_may_come_later_or_never(run: Callable[[Scenario], None]) -> None:
    async def scenario(service: Recorder, listener: Listener) -> None:
        async with connect(listener.port) as client:
            await client.send(encode_frame(LATER, 1) + encode_frame(NO_REPLY, 2) + encode_frame(ECHO, 3))
            assert {(await client.receive()).opaque for _ in range(2)} == {1, 3}

    run(scenario)


def test_a_mistake_of_the_service_is_answered_and_logged_once_with_its_traceback(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(service: Recorder, listener: Listener) -> None:
        with capture_logs() as lines:
            async with connect(listener.port) as client:
                reply = await client.call(FAIL)
                assert reply.code == Response.SYSTEM_ERROR
                assert reply.remark == "internal error: ZeroDivisionError"
                assert (await client.call(ECHO, body=b"on")).body == b"on"
        assert [line["event"] for line in lines] == ["request failed"]
        assert isinstance(lines[0]["exc_info"], ZeroDivisionError)

    run(scenario)


def test_a_client_is_asked_and_answers(run: Callable[[Scenario], None]) -> None:
    async def scenario(service: Recorder, listener: Listener) -> None:
        async with connect(listener.port) as client:
            await client.call(ECHO)
            (connection,) = service.connections
            answer = connection.call(Request.GET_CONSUMER_RUNNING_INFO, fields={"clientId": "c"}, timeout_s=20)
            asked = await client.receive()
            assert (asked.code, asked.text_fields()) == (Request.GET_CONSUMER_RUNNING_INFO, {"clientId": "c"})
            await client.send(encode_frame(0, 12345, flag=FLAG_RESPONSE, body=b"nobody asked"))
            await client.send(encode_frame(0, asked.opaque, flag=FLAG_RESPONSE, body=b"well"))
            assert (await answer).body == b"well"
            await client.send(encode_frame(0, asked.opaque, flag=FLAG_RESPONSE, body=b"again"))
            assert (await client.call(ECHO, body=b"on")).body == b"on"

    run(scenario)


def test_a_client_that_does_not_answer_is_given_up(run: Callable[[Scenario], None]) -> None:
    async def scenario(service: Recorder, listener: Listener) -> None:
        async with connect(listener.port) as client:
            await client.call(ECHO)
            (connection,) = service.connections
            with pytest.raises(TimeoutError):
                await connection.call(Request.GET_CONSUMER_RUNNING_INFO, timeout_s=0.01)
            answers = [connection.call(Request.GET_CONSUMER_RUNNING_INFO, timeout_s=20) for _ in range(MAX_CALLS)]
            with pytest.raises(Busy):
                connection.call(Request.GET_CONSUMER_RUNNING_INFO, timeout_s=20)
        for answer in answers:
            with pytest.raises(ConnectionResetError):
                await answer
        with pytest.raises(ConnectionResetError):
            await connection.call(Request.GET_CONSUMER_RUNNING_INFO, timeout_s=20)

    run(scenario)


def test_a_peer_is_known_by_its_packed_address_and_small_frames_leave_at_once(run: Callable[[Scenario], None]) -> None:
    async def scenario(service: Recorder, listener: Listener) -> None:
        async with connect(listener.port) as client:
            await client.call(ECHO)
            (connection,) = service.connections
            assert connection.peer_name == client.name
            assert connection.peer_host == pack_host(*connection.peer)
            accepted = connection._transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    run(scenario)


def test_an_ipv4_client_of_an_ipv6_listener_is_known_by_its_ipv4_address() -> None:
    service = Recorder()
    # asyncio makes IPv6 sockets deaf to IPv4, so the wrapped address is given to the connection by hand.
    connection = Connection(service, Listener(service, ServerConfig(), SystemClock()))
    connection.connection_made(WrappedAddress())
    assert connection.peer == ("127.0.0.1", 4711)
    assert len(connection.peer_host) == 8


class WrappedAddress(asyncio.Transport):
    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("::ffff:127.0.0.1", 4711, 0, 0) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


def test_closing_a_listener_lets_answers_out_first(run: Callable[[Scenario], None]) -> None:
    async def scenario(service: Recorder, listener: Listener) -> None:
        async with connect(listener.port) as client:
            body = bytes(1 << 20)
            await client.send(encode_frame(ECHO, 1, body=body))
            await eventually(lambda: service.served, "the request to be served")
            closing = asyncio.create_task(listener.close())
            assert (await client.receive()).body == body
            assert await client.is_closed_by_server()
            await closing

    run(scenario)
