"""A gRPC server with methods that echo, count, wait and fail, in a thread of the test's process or in its own process.

`python -m tests.support.http2_server PORT` serves on uvloop until SIGTERM, and prints "ready".
"""

import asyncio
import concurrent.futures
import contextlib
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import uvloop

from latermq.clock import Clock, SystemClock
from latermq.protocol.http2.grpc.status import GrpcError, StatusCode
from latermq.protocol.http2.hpack.encoder import encode_fields
from latermq.protocol.http2.stream import Stream
from latermq.server.http2.calls import Bidirectional, Call, Methods, Receiver, ServerStream, Unary
from latermq.server.http2.connection import HandlerFactory, Http2Connection
from latermq.server.http2.listener import Http2Listener, grpc_handler
from latermq.server.http2.transport_limits import TransportLimits

HOST = "127.0.0.1"
T = TypeVar("T")


class Echo(Receiver):
    """Sends back each message of a bidirectional call, and ends with the client."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def message(self, message: bytes) -> None:
        if message == b"fail":
            raise GrpcError(StatusCode.ABORTED, "as asked")
        if message == b"raise":
            raise ValueError("as asked")
        self._call.send(message)

    def ended(self) -> None:
        self._call.end(fields=[(b"x-end", b"yes")])


class TestService:
    """Methods for tests. `cancelled` lists the paths of calls that ended before their handlers ended them."""

    __test__ = False

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.waiting: list[Call] = []
        self.sent_bytes = 0
        self.tasks: set[asyncio.Task[None]] = set()

    def methods(self) -> Methods:
        return {
            b"/test.Service/Echo": Unary(lambda call, message: message),
            b"/test.Service/Later": Unary(self.later),
            b"/test.Service/Wait": Unary(self.wait),
            b"/test.Service/Fail": Unary(self.fail),
            b"/test.Service/Raise": Unary(self.raises),
            b"/test.Service/Metadata": Unary(self.metadata),
            b"/test.Service/Count": ServerStream(self.count),
            b"/test.Service/Flood": ServerStream(self.flood),
            b"/test.Service/Chat": Bidirectional(self.chat),
        }

    def later(self, call: Call, message: bytes) -> None:
        asyncio.get_running_loop().call_later(0.01, call.reply, message)

    def wait(self, call: Call, message: bytes) -> None:
        self.waiting.append(call)
        call.on_cancel = lambda: self.cancelled.append(call.path.decode())

    def fail(self, call: Call, message: bytes) -> bytes:
        raise GrpcError(StatusCode(int(message)), "as asked: ü%\n.")

    def raises(self, call: Call, message: bytes) -> bytes:
        raise ValueError("as asked")

    def metadata(self, call: Call, message: bytes) -> bytes:
        left_s = -1.0 if call.deadline_s is None else call.deadline_s - call.connection.now_s()
        return b"%s %d" % (call.metadata.get(message, b"-"), left_s)

    def count(self, call: Call, message: bytes) -> None:
        for number in range(int(message)):
            call.send(b"%d" % number)
        call.end(StatusCode.OK, "counted", [(b"x-count", message)])

    def flood(self, call: Call, message: bytes) -> None:
        """Send messages of 10,000 bytes for as long as the client reads."""
        call.on_cancel = lambda: self.cancelled.append(call.path.decode())
        task = asyncio.get_running_loop().create_task(self._flood(call, int(message)))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _flood(self, call: Call, count: int) -> None:
        for _ in range(count):
            if not call.is_open:
                return
            if not call.send(b"x" * 10_000):
                await call.drain()
            self.sent_bytes += 10_000
        call.end()

    def chat(self, call: Call) -> Receiver:
        call.on_cancel = lambda: self.cancelled.append(call.path.decode())
        return Echo(call)


class BodyHandler:
    """Answers every HTTP request with a body when it has arrived completely."""

    def __init__(self, connection: Http2Connection, body: bytes) -> None:
        self._connection = connection
        self._body = body

    def handle(self, stream: Stream) -> None:
        http2 = self._connection.http2
        size = len(stream.take_data())
        if stream.reset is not None:
            return
        http2.release(stream, size)
        http2.grant(stream, size)
        if stream.is_ended:
            fields = [(b":status", b"200"), (b"content-length", b"%d" % len(self._body))]
            http2.outbox.headers(stream, encode_fields(fields), end_stream=False)
            http2.outbox.data(stream, self._body)
            http2.outbox.end(stream, b"")

    def sweep(self, now_s: float) -> None:
        pass


def body_handler(body: bytes) -> HandlerFactory:
    return lambda connection: BodyHandler(connection, body)


class RunningListener:
    """A listener in its own thread."""

    def __init__(self, listener: Http2Listener, loop: asyncio.AbstractEventLoop, service: TestService) -> None:
        self.listener = listener
        self.service = service
        self.certificate: Path | None = None  # for clients that use TLS
        self._loop = loop

    @property
    def port(self) -> int:
        return self.listener.port

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine in the listener's thread."""
        return self.begin(work).result(60)

    def begin(self, work: Callable[[], Awaitable[T]]) -> "concurrent.futures.Future[T]":
        async def awaited() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop)

    def call(self, work: Callable[[], T]) -> T:
        """Call a function in the listener's thread."""

        async def called() -> T:
            return work()

        return self.run(called)

    def statistics(self) -> dict[str, int]:
        return self.call(self.listener.statistics)


@contextlib.contextmanager
def running_listener(
    limits: TransportLimits | None = None,
    tls: ssl.SSLContext | None = None,
    new_handler: HandlerFactory | None = None,
    port: int = 0,
    clock: Clock | None = None,
) -> Iterator[RunningListener]:
    """A listener on a free port of the loopback interface."""
    service = TestService()
    handler = new_handler or grpc_handler(service.methods())
    listener = Http2Listener(handler, limits or TransportLimits(), clock or SystemClock(), tls)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    running = RunningListener(listener, loop, service)
    try:
        running.run(lambda: listener.start(HOST, port))
        yield running
    finally:
        running.run(lambda: listener.stop(grace_s=0.2))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def server_process(port: int) -> "Iterator[subprocess.Popen[str]]":
    """The server in its own process, with the default limits."""
    command = [sys.executable, "-m", __name__, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=30)


async def _serve(port: int) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    listener = Http2Listener(grpc_handler(TestService().methods()), TransportLimits(), SystemClock())
    await listener.start(HOST, port)
    print("ready", flush=True)
    await stopping.wait()
    await listener.stop(grace_s=1.0)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(int(sys.argv[1])))
