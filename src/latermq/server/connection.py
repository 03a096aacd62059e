"""One accepted connection of the remoting protocol: frames in, one joined write of replies out, bounds on both."""

import asyncio
import socket
from collections.abc import Mapping
from typing import Protocol, cast

import structlog

from latermq.clock import Clock
from latermq.config import ServerConfig
from latermq.errors import Busy, LaterMQError
from latermq.message.ids import pack_host
from latermq.protocol.remoting.frames import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    Command,
    FrameReader,
    encode_frame,
    encode_response,
)
from latermq.protocol.remoting.send_requests import decode_request

# Requests of ours that one client may leave unanswered; they come from an operator's hand, one at a time.
MAX_CALLS = 64

_NO_PEER = ("0.0.0.0", 0)
# A read of this size has filled the event loop's buffer (256,000 bytes in uvloop, 256 KiB in asyncio). uvloop goes on
# reading then, up to 32 times before anything else gets its turn: 0.24 s of sends, in which no timer runs.
_FULL_READ_BYTES = 200_000
_log = structlog.get_logger(__name__)


class Service(Protocol):
    """What a listener serves: the broker or the name server."""

    def opened(self, connection: "Connection") -> None:
        """A client has connected."""
        ...

    def serve(self, connection: "Connection", command: Command) -> bytes | None:
        """Answer one request: the whole reply frame, or None where `connection.send` brings it later or never."""
        ...

    def settled(self) -> None:
        """All commands of one read have been served: the place to commit them as a group and to wake who waits."""
        ...

    def closed(self, connection: "Connection") -> None:
        """A client has gone; nothing can be sent to it any more."""
        ...


class Lane(Protocol):
    """A shorter way for runs of ordinary requests."""

    def take(self, commands: list[Command], at: int, born_host: bytes, replies: list[bytes]) -> int:
        """Serve as many commands from `at` on as it can, add a reply for each, and return where it stopped."""
        ...


class Owner(Protocol):
    """Who holds a connection: it admits, counts and forgets it."""

    config: ServerConfig
    clock: Clock
    received_frames: int
    refused_requests: int

    def admit(self, connection: "Connection") -> bool: ...

    def forget(self, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    """One client. The service answers its requests in order; `send` and `call` reach it at any other time."""

    __slots__ = (
        "_active",
        "_admitted",
        "_calls",
        "_closing_since_s",
        "_last_opaque",
        "_owner",
        "_paused_since_s",
        "_quiet_since_s",
        "_reader",
        "_refusal_logged",
        "_room_bytes",
        "_service",
        "_transport",
        "_waiting",
        "attachment",
        "lane",
        "peer",
        "peer_host",
    )

    def __init__(self, service: Service, owner: Owner) -> None:
        self.peer: tuple[str, int] = _NO_PEER
        self.peer_host: bytes = b""
        self.attachment: object | None = None  # the service's own state of this connection
        self.lane: Lane | None = None  # set by a service that has one
        self._service = service
        self._owner = owner
        self._reader = FrameReader(owner.config.max_frame, decode_request)
        self._room_bytes = int(owner.config.write_buffer)
        self._transport = cast(asyncio.Transport, None)  # there is one from connection_made on
        self._admitted = False
        self._waiting: list[Command] = []  # read, but not served before the peer has read what it got
        self._calls: dict[int, asyncio.Future[Command]] | None = None
        self._last_opaque = 0
        # Set by every frame in either direction and taken back by the sweep: cheaper than the time of each frame.
        self._active = True
        self._refusal_logged = False
        self._quiet_since_s = 0.0
        self._paused_since_s: float | None = None
        self._closing_since_s: float | None = None

    @property
    def is_closing(self) -> bool:
        return self._transport.is_closing()

    @property
    def is_paused(self) -> bool:
        """Whether the peer is behind with reading. Who sends on its own account should wait until it is not."""
        return self._paused_since_s is not None

    @property
    def held_bytes(self) -> int:
        """What this connection holds in memory: an incomplete frame, and replies that the peer has not read."""
        return self._reader.held_bytes + self._transport.get_write_buffer_size()

    @property
    def peer_name(self) -> str:
        return f"{self.peer[0]}:{self.peer[1]}"

    def send(self, frame: bytes) -> None:
        """Send a late reply or a notification; to a peer that has gone it goes nowhere."""
        if not self._transport.is_closing():
            self._active = True
            self._transport.write(frame)

    def call(
        self, code: int, *, fields: Mapping[str, str] | None = None, body: bytes = b"", timeout_s: float
    ) -> "asyncio.Future[Command]":
        """Ask the client something. The future ends in TimeoutError or ConnectionResetError when no answer comes."""
        if self._calls is None:
            self._calls = {}
        if len(self._calls) >= MAX_CALLS:
            raise Busy(f"client {self.peer_name} has {MAX_CALLS} requests to answer", hint="Ask again when it has")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Command] = loop.create_future()
        if self.is_closing:
            future.set_exception(ConnectionResetError(f"client {self.peer_name} has gone"))
            return future
        opaque = self._last_opaque = (self._last_opaque + 1) & 0x7FFFFFFF
        calls = self._calls
        calls[opaque] = future
        timer = loop.call_later(timeout_s, self._give_up, opaque)

        def end(_: "asyncio.Future[Command]") -> None:
            timer.cancel()
            calls.pop(opaque, None)

        future.add_done_callback(end)
        self.send(encode_frame(code, opaque, fields=fields, body=body))
        return future

    def watch_peer(self) -> None:
        """Have the kernel ask a silent peer whether it is there: one whose host died is gone within half a minute."""
        sock = self._transport.get_extra_info("socket")
        for level, option, value in (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
        ):
            sock.setsockopt(level, option, value)

    def close(self) -> None:
        """Close after what was sent has been written."""
        if self._closing_since_s is None:
            self._closing_since_s = self._owner.clock.monotonic_s()
            self._waiting = []
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what was sent and not yet written is lost."""
        self.close()
        self._transport.abort()

    def sweep(self, now_s: float) -> None:
        """Look after this connection, from time to time: cut it off where it stalls, close it where it idles."""
        config = self._owner.config
        stalled_s = config.stalled_timeout / 1000
        self._refusal_logged = False
        if self._closing_since_s is not None:
            if now_s - self._closing_since_s >= stalled_s:
                self._transport.abort()
        elif self._paused_since_s is not None:
            if now_s - self._paused_since_s >= stalled_s:
                _log.warning("connection cut off", peer=self.peer_name, reason=f"it read nothing for {stalled_s:g} s")
                self.abort()
        elif self._active:
            self._active = False
            self._quiet_since_s = now_s
        elif now_s - self._quiet_since_s >= config.idle_timeout / 1000:
            # Whole frames count, not bytes: a frame that comes byte by byte keeps nothing open.
            reason = "a frame was begun and never ended" if self._reader.held_bytes else "idle"
            _log.info("connection closed", peer=self.peer_name, reason=reason)
            self.close()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._quiet_since_s = self._owner.clock.monotonic_s()
        if not self._owner.admit(self):
            self._closing_since_s = self._quiet_since_s
            self._transport.abort()
            return
        self._admitted = True
        # None where the peer had gone before it was accepted.
        address = transport.get_extra_info("peername") or _NO_PEER
        self.peer = (_plain_ip(address[0]), address[1])
        self.peer_host = pack_host(*self.peer)
        self._transport.set_write_buffer_limits(high=self._room_bytes)
        self._service.opened(self)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        commands = reader.feed(data)
        if commands:
            self._active = True
            self._owner.received_frames += len(commands)
            if self._waiting:
                self._waiting += commands
            else:
                self._serve(commands)
        if reader.broken is not None and not self._waiting:
            self._close_broken()
        elif len(data) >= _FULL_READ_BYTES and self._paused_since_s is None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        """Go on after others had their turn."""
        if self._paused_since_s is None and not self.is_closing:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._paused_since_s = self._owner.clock.monotonic_s()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused_since_s = None
        if self.is_closing:
            return
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._serve(waiting)
        if self._paused_since_s is None and not self.is_closing:
            if self._reader.broken is not None:
                self._close_broken()
            else:
                self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._admitted:
            return
        if self._reader.held_bytes and self._closing_since_s is None:
            _log.info("connection lost", peer=self.peer_name, reason="it ended inside a frame")
        self._waiting = []
        for future in list((self._calls or {}).values()):
            if not future.done():
                future.set_exception(ConnectionResetError(f"client {self.peer_name} has gone"))
        self._owner.forget(self)
        self._service.closed(self)

    # The way of a request.

    def _serve(self, commands: list[Command]) -> None:
        """Serve commands and write their replies at once, or as far as the peer's reading allows."""
        serve = self._service.serve
        replies: list[bytes] = []
        room_bytes = self._room_bytes
        at, end = 0, len(commands)
        while at < end:
            if (lane := self.lane) is not None:  # a request before may have closed it
                # A run is part of one read, so its replies need no look at the room between them.
                first = len(replies)
                try:
                    at = lane.take(commands, at, self.peer_host, replies)
                except Exception:
                    self._give_up_run(replies)
                    return
                room_bytes -= sum(map(len, replies[first:]))
                if at == end:
                    break
            command = commands[at]
            try:
                reply = None
                if command.flag & FLAG_RESPONSE:
                    self._answered(command)
                else:
                    reply = serve(self, command)
            except Exception as error:
                reply = self.refuse(command, error)
            at += 1
            if reply is None or command.flag & FLAG_ONEWAY:
                continue
            replies.append(reply)
            room_bytes -= len(reply)
            if room_bytes < 0:
                self.send(b"".join(replies))
                replies = []
                room_bytes = self._room_bytes
                if self._paused_since_s is not None:
                    self._waiting = commands[at:]
                    break
        if replies:
            self.send(b"".join(replies) if len(replies) > 1 else replies[0])
        self._settle()

    def _give_up_run(self, replies: list[bytes]) -> None:
        """The lane has failed, and how much of its run is stored nobody knows: to serve it again might store it twice.

        The client loses its connection, and with it the answers it still waits for, as it would to a broken cable.
        """
        _log.exception("connection closed", peer=self.peer_name, reason="a run of messages failed half-way")
        self.send(b"".join(replies))
        self.close()
        self._settle()

    def _settle(self) -> None:
        try:
            self._service.settled()
        except Exception:
            _log.exception("settling failed", peer=self.peer_name)

    def refuse(self, command: Command, error: Exception) -> bytes:
        """The reply to a request that failed, after a line in the log where it deserves one."""
        self._owner.refused_requests += 1
        if not isinstance(error, LaterMQError):
            _log.error("request failed", peer=self.peer_name, request=command.code, exc_info=error)
            return encode_response(command, LaterMQError.code, remark=f"internal error: {type(error).__name__}")
        # One line for each sweep: a client that repeats its mistake must not fill the disk with it.
        if not (self._refusal_logged or error.ordinary):
            self._refusal_logged = True
            level = _log.debug if error.retriable else _log.info
            level("request refused", peer=self.peer_name, request=command.code, code=error.code, reason=error.remark)
        return encode_response(command, error.code, remark=error.remark)

    def _answered(self, command: Command) -> None:
        future = self._calls.get(command.opaque) if self._calls else None
        if future is not None and not future.done():
            future.set_result(command)

    def _give_up(self, opaque: int) -> None:
        future = self._calls.get(opaque) if self._calls else None
        if future is not None and not future.done():
            future.set_exception(TimeoutError(f"client {self.peer_name} did not answer in time"))

    def _close_broken(self) -> None:
        if self._closing_since_s is None:
            _log.warning("connection closed", peer=self.peer_name, reason=str(self._reader.broken))
            self.close()


def _plain_ip(ip: str) -> str:
    """An address without its scope, and as IPv4 where IPv6 only wraps it."""
    ip = ip.partition("%")[0]
    return ip[7:] if ip.startswith("::ffff:") and "." in ip else ip
