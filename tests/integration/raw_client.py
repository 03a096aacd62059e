"""A client that can misbehave: it sends whatever bytes it is given and reads only when told to."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from latermq.protocol.remoting.frames import JSON, Command, FrameReader, encode_frame

TIMEOUT_S = 20.0

T = TypeVar("T")


class RawClient:
    """One blocking-free socket under the hand of a test."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = FrameReader()
        self._commands: list[Command] = []
        self._opaque = 0

    @property
    def name(self) -> str:
        """How the server's log lines call this client."""
        host, port = self._sock.getsockname()
        return f"{host}:{port}"

    async def send(self, data: bytes) -> None:
        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(self._sock, data), TIMEOUT_S)

    async def receive(self) -> Command:
        """The next frame; raises ConnectionError when the server closes instead."""
        while not self._commands:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._sock, 1 << 16), TIMEOUT_S)
            if not data:
                raise ConnectionResetError("closed by the server")
            self._commands = self._reader.feed(data)
        return self._commands.pop(0)

    async def call(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", encoding: int = JSON
    ) -> Command:
        self._opaque += 1
        await self.send(encode_frame(code, self._opaque, fields=fields, body=body, encoding=encoding))
        reply = await self.receive()
        assert reply.opaque == self._opaque
        assert reply.is_response
        assert reply.encoding == encoding
        return reply

    async def send_only(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> int:
        """Send a request without waiting for its answer; its opaque."""
        self._opaque += 1
        await self.send(encode_frame(code, self._opaque, fields=fields or {}, body=body))
        return self._opaque

    async def is_closed_by_server(self) -> bool:
        """Wait until the server closes this connection; whatever comes before is read and dropped."""
        try:
            while True:
                await self.receive()
        except ConnectionError:
            return True

    def close(self) -> None:
        self._sock.close()


@asynccontextmanager
async def connect(port: int, *, receive_buffer_bytes: int | None = None) -> AsyncIterator[RawClient]:
    """A client connected over loopback."""
    with socket.socket() as sock:
        sock.setblocking(False)
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        yield RawClient(sock)


async def eventually(happened: Callable[[], T | None], what: str) -> T:
    """The first true answer of `happened`, asked whenever the loop has done other work."""
    deadline_s = asyncio.get_running_loop().time() + TIMEOUT_S
    while not (answer := happened()):
        if asyncio.get_running_loop().time() > deadline_s:
            raise AssertionError(f"not within {TIMEOUT_S:g} s: {what}")
        await asyncio.sleep(0.005)
    return answer
