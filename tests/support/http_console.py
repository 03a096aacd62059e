"""A console in a thread of this process, and a client that speaks HTTP to it."""

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import uvloop

from latermq.clock import SystemClock
from latermq.config import load_config
from latermq.http.process import ConsoleProcess
from tests.interop.ports import HOST

START_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Reply:
    """An answer, with header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The objects of an NDJSON body."""
        return [json.loads(line) for line in self.body.splitlines()]


class HttpClient:
    """Sends requests, each on a connection of its own."""

    def __init__(self, port: int, headers: Mapping[str, str] | None = None) -> None:
        self.port = port
        self._headers = dict(headers or {})

    def request(
        self, method: str, path: str, body: object = None, *, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send a request. A body that is not bytes is sent as JSON."""
        sent = {**self._headers, **(headers or {})}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, body: object, **headers: str) -> Reply:
        return self.request("POST", path, body, headers=headers)


@contextlib.contextmanager
def running_console(namesrv: str, *settings: str) -> Iterator[tuple[ConsoleProcess, HttpClient]]:
    """A console on a free port. Its loop runs in a thread, so that tests may block."""
    config = load_config(settings=["http.port=0", f"http.namesrv={namesrv}", *settings], environment={})
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="console")
    thread.start()

    async def start() -> ConsoleProcess:
        process = ConsoleProcess(config, SystemClock())
        await process.start()
        return process

    try:
        process = asyncio.run_coroutine_threadsafe(start(), loop).result(START_TIMEOUT_S)
        try:
            token = config.http.token
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            yield process, HttpClient(process.listener.port, headers)
        finally:
            asyncio.run_coroutine_threadsafe(process.stop(), loop).result(START_TIMEOUT_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
