"""The connections to the brokers: one per broker, kept open, with answers passed to callbacks.

A request needs neither a task nor a future. While a broker is unreachable, requests to it fail at once.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import structlog

from latermq.client.session.connection import Connection, Connections, OnResponse
from latermq.client.session.credentials import Credentials
from latermq.client.session.failures import ConnectFailed, NoBroker, error_from_wire
from latermq.client.session.routes import MASTER, Routes
from latermq.config import ProxyConfig
from latermq.errors import Busy, LaterMQError, MalformedRequest
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import JSON, Command, HeaderType, encode_response
from latermq.protocol.remoting.json_body import decode_body
from latermq.protocol.remoting.routes import ClusterInfo
from latermq.retry import Backoff
from latermq.tls.client import ClientTls

MAX_BROKERS = 1_000
# A broker that is down is not registered, but returns at the same address. After this it is considered removed.
FORGET_AFTER_S = 120.0
FIRST_PAUSE_S = 0.2
UNKNOWN_PAUSE_S = 1.0  # clients can send any names
LONGEST_PAUSE_S = 2.0
ANSWERED_POLL_S = 0.01

_log = structlog.get_logger(__name__)

# Serves a request of a broker. Returns the response, or None if there is none.
RequestHandler = Callable[[str, Command], bytes | None]


class BrokerLink:
    """Requests to brokers by name. Call `start` and `close` once each."""

    def __init__(
        self,
        namesrv: str,
        config: ProxyConfig,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._timeout_s = config.broker_timeout / 1000
        self._refresh_s = config.route_refresh / 1000
        self._max_pending = config.max_broker_requests
        self.connections = Connections(
            on_request=self._on_request, connect_timeout_s=self._timeout_s, tls=tls, credentials=credentials
        )
        self.connections.on_lost = self._on_lost
        self.credentials = credentials
        self.name_servers = Routes(self.connections, namesrv, timeout_s=self._timeout_s)
        self.handlers: dict[int, RequestHandler] = {}  # of requests that brokers send, by code
        # Called with the name of each broker that a connection was opened to.
        self.on_connected: list[Callable[[str], None]] = []
        self._loop = asyncio.get_running_loop()
        self._addresses: dict[str, str] = {}
        self._missing_since_s: dict[str, float] = {}  # brokers that are no longer registered
        self._open: dict[str, Connection] = {}
        # Whether there is a connection to the broker of this name. Each send asks for it.
        self.is_open: Callable[[str], bool] = self._open.__contains__
        self.next_opaque = self.connections.next_opaque
        self._names: dict[str, str] = {}  # of the brokers at each address
        self._connected = asyncio.Event()  # to a broker, for the first time
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._refreshed_s = -UNKNOWN_PAUSE_S
        self._failed_requests = 0

    # Requests

    @property
    def brokers(self) -> list[str]:
        """The brokers with an open connection."""
        return list(self._open)

    @property
    def addresses(self) -> list[str]:
        """The addresses of the brokers with an open connection."""
        return [self._addresses[name] for name in self._open if name in self._addresses]

    @property
    def known_brokers(self) -> list[str]:
        """All brokers, reachable or not."""
        return list(self._addresses)

    def is_known(self, broker: str) -> bool:
        """Whether a broker of this name exists, reachable or not. The name servers are asked about another one soon."""
        if broker in self._addresses:
            return True
        if self._loop.time() - self._refreshed_s >= UNKNOWN_PAUSE_S:
            self._wake.set()
        return False

    def request(
        self,
        broker: str,
        code: int,
        fields: Mapping[str, str],
        on_response: OnResponse,
        *,
        body: bytes = b"",
        timeout_s: float = 0.0,
        encoding: int = JSON,
    ) -> int:
        """Send a request and pass its response, of any code, or an error to `on_response`, perhaps at once.

        Returns the number of the request. Codes above 32,767 need the encoding JSON. Without a timeout, the one for
        requests that do not wait applies.
        """
        opaque = self.next_opaque()
        frame = self.connections.frame(code, opaque, fields, body, encoding=encoding)
        self.send(broker, opaque, frame, on_response, timeout_s)
        return opaque

    def send(self, broker: str, opaque: int, frame: bytes, on_response: OnResponse, timeout_s: float = 0.0) -> None:
        """Send a frame with the number of `next_opaque`, as `request` does."""
        connection = self._open.get(broker)
        if connection is None:
            self._failed_requests += 1
            on_response(self._unreachable(broker))
        elif connection.pending >= self._max_pending:
            self._failed_requests += 1
            on_response(
                Busy(f"{connection.pending} requests to broker {broker!r} are unanswered", hint="Try again later")
            )
        else:
            connection.request(opaque, frame, on_response, self._loop.time() + (timeout_s or self._timeout_s))

    async def call(self, broker: str, code: int, fields: Mapping[str, str], body: bytes = b"") -> Command:
        """Send a request and return its response. Raises the error for a code other than success."""
        future: asyncio.Future[Command] = self._loop.create_future()

        def on_response(response: Command | LaterMQError) -> None:
            if future.done():
                return
            if isinstance(response, LaterMQError):
                future.set_exception(response)
            elif response.code:
                future.set_exception(error_of(response))
            else:
                future.set_result(response)

        self.request(broker, code, fields, on_response, body=body)
        return await future

    def _unreachable(self, broker: str) -> LaterMQError:
        if broker in self._addresses:
            return ConnectFailed(f"broker {broker!r} is not reachable", hint="Try again in a few seconds")
        return NoBroker(f"broker {broker!r} is not registered", hint="Query the route again")

    # Connections

    async def start(self, timeout_s: float) -> None:
        """Connect to the brokers, and return when one is connected, at the latest after the timeout."""
        self._task = asyncio.create_task(self._run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()

    async def close(self) -> None:
        """Wait until the brokers have answered, at most for the timeout of a request, and close the connections.

        A pop whose answer comes later would hold its messages, and what is returned for them must arrive.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                while any(connection.pending for connection in self._open.values()):  # noqa: ASYNC110 - has no event
                    await asyncio.sleep(ANSWERED_POLL_S)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self.name_servers.close()
        await self.connections.close()

    def statistics(self) -> dict[str, int]:
        return {
            "brokers": len(self._addresses),
            "brokers_connected": len(self._open),
            "broker_requests": max((connection.pending for connection in self._open.values()), default=0),
            "failed_broker_requests": self._failed_requests,
        }

    async def _run(self) -> None:
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            self._wake.clear()
            self._refreshed_s = self._loop.time()
            await self._refresh(backoff)
            if self._open and len(self._open) == len(self._addresses):
                backoff.reset()
                pause_s = self._refresh_s
            else:
                pause_s = backoff.next_pause()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _refresh(self, backoff: Backoff[float]) -> None:
        try:
            body = await self.name_servers.call_name_server(Request.GET_BROKER_CLUSTER_INFO)
            self._update(decode_body(body, ClusterInfo))
        except LaterMQError as error:
            if not backoff.failures:
                _log.warning("the brokers are unknown", reason=error.remark)
        missing = [name for name in self._addresses if name not in self._open]
        await asyncio.gather(*(self._connect(name, self._addresses[name]) for name in missing))

    def _update(self, info: ClusterInfo) -> None:
        now_s = self._loop.time()
        for name, data in info.brokerAddrTable.items():
            if not data.brokerAddrs or (name not in self._addresses and len(self._addresses) >= MAX_BROKERS):
                continue
            self._missing_since_s.pop(name, None)
            address = data.brokerAddrs.get(MASTER) or min(data.brokerAddrs.items())[1]
            if self._addresses.get(name) != address:
                self._forget(name)
                self._addresses[name] = address
                self._names[address] = name
        for name in self._addresses.keys() - info.brokerAddrTable.keys():
            since_s = self._missing_since_s.setdefault(name, now_s)
            if name not in self._open and now_s - since_s > FORGET_AFTER_S:
                self._forget(name)

    def _forget(self, name: str) -> None:
        address = self._addresses.pop(name, None)
        if address is not None:
            self._names.pop(address, None)
        self._missing_since_s.pop(name, None)
        connection = self._open.pop(name, None)
        if connection is not None:
            connection.close()

    async def _connect(self, name: str, address: str) -> None:
        try:
            connection = await self.connections.open(address, self._loop.time() + self._timeout_s)
        except (LaterMQError, ValueError) as error:
            _log.debug("a broker is not reachable", broker=name, reason=str(error))
            return
        if self._addresses.get(name) != address or not connection.is_open:
            return
        self._open[name] = connection
        self._connected.set()
        _log.info("connected to a broker", broker=name, address=address)
        for on_connected in self.on_connected:
            on_connected(name)

    def _on_lost(self, address: str) -> None:
        name = self._names.get(address)
        if name is not None and self._open.pop(name, None) is not None:
            _log.warning("the connection to a broker was lost", broker=name, address=address)
            self._wake.set()

    def _on_request(self, connection: Connection, command: Command) -> None:
        handler = self.handlers.get(command.code)
        response = None
        if handler is not None:
            response = handler(self._names.get(connection.address, ""), command)
        elif not command.is_oneway:
            response = encode_response(command, Response.REQUEST_CODE_NOT_SUPPORTED, remark="a proxy has no such state")
        if response is not None and not command.is_oneway:
            connection.send(response)


def header_of(response: Command, type_: type[HeaderType]) -> HeaderType:
    """Return the header of a response. One that cannot be read is not the client's fault."""
    try:
        return response.header(type_)
    except MalformedRequest as error:
        raise LaterMQError(f"the broker's reply cannot be read: {error.message}") from None


def error_of(response: Command) -> LaterMQError:
    """Return the error for a response with a code other than success."""
    return error_from_wire(response.code, response.remark)
