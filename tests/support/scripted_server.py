"""A scripted name server and broker in one process, for faults that a real server does not produce on demand."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, FrameReader, encode_frame, encode_response
from latermq.protocol.remoting.send import SendHeaderV2

HOST = "127.0.0.1"
DISCONNECT = b"disconnect"
Answer = bytes | None
Script = Callable[[Command], Answer]


class ScriptedServer:
    """Answers route requests itself and passes all others to `script`. A script returns None to send no response."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Command] = []
        self.brokers: dict[str, str] = {}
        self.queues = 4
        self.port = 0
        self.connections: list[asyncio.Transport] = []
        self.responses: list[Command] = []

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def sends(self) -> list[SendHeaderV2]:
        return [request.header(SendHeaderV2) for request in self.requests if request.code == Request.SEND_MESSAGE_V2]

    def count(self, code: int) -> int:
        return sum(request.code == code for request in self.requests)

    def send_request(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """Send a request to every client."""
        for transport in self.connections:
            transport.write(encode_frame(code, 77, fields=fields, body=body))

    def answer(self, request: Command) -> Answer:
        if request.is_response:
            self.responses.append(request)
            return None
        self.requests.append(request)
        if request.code == Request.GET_ROUTEINFO_BY_TOPIC:
            brokers = self.brokers or {"broker-a": self.address}
            route = {
                "queueDatas": [
                    {"brokerName": name, "readQueueNums": self.queues, "writeQueueNums": self.queues, "perm": 6}
                    for name in brokers
                ],
                "brokerDatas": [
                    {"cluster": "c", "brokerName": name, "brokerAddrs": {"0": address}}
                    for name, address in brokers.items()
                ],
            }
            return encode_response(request, body=json.dumps(route).encode())
        if request.code in (Request.HEART_BEAT, Request.UNREGISTER_CLIENT):
            return encode_response(request)
        return self.script(request)


class _Protocol(asyncio.Protocol):
    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._reader = FrameReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.append(transport)

    def data_received(self, data: bytes) -> None:
        for request in self._reader.feed(data):
            answer = self._server.answer(request)
            if answer == DISCONNECT:
                self._transport.abort()
            elif answer is not None:
                self._transport.write(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.remove(self._transport)


@contextlib.asynccontextmanager
async def scripted_server(script: Script) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer(script)
    listener = await asyncio.get_running_loop().create_server(lambda: _Protocol(server), HOST, 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for transport in list(server.connections):
            transport.abort()
        await listener.wait_closed()


def stored_response(request: Command) -> bytes:
    """The response to a successful send."""
    header = request.header(SendHeaderV2)
    fields = {"msgId": "00" * 16, "queueId": str(header.queueId), "queueOffset": "7"}
    return encode_response(request, fields=fields)


def error_response(code: int, remark: str = "not now") -> Script:
    return lambda request: encode_response(request, code, fields={}, remark=remark)


async def eventually(condition: Callable[[], object], description: str, timeout_s: float = 10.0) -> None:
    """Wait until a condition is true. On timeout, fail with its description."""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline_s, f"not within {timeout_s:g} s: {description}"
        await asyncio.sleep(0.01)
