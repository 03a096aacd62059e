"""One accepted connection of the remoting protocol: reads frames, writes replies in batches, and bounds both."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol, cast

import structlog

from latermq.addresses import plain_ip
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
from latermq.server.remoting.held_bytes import HeldBytes
from latermq.server.remoting.turns import Turns

# Server-to-client requests that one client may leave unanswered. An operator triggers them, one at a time.
MAX_CALLS = 64
# Concurrent sliced requests of one client. Its other requests wait for them.
MAX_SLICED_REQUESTS = 4
FRAMES_PER_DECODE = 64  # frames to decode before serving the first of them
# The loop's next turn sends what was just written, so only a write buffer above this size counts as unread.
FREE_REPLY_BYTES = 16 * 1024
# The unread replies that a peer may have while the connections together hold many bytes (`HeldBytes.is_tight`).
TIGHT_REPLY_BYTES = 64 * 1024
JOINED_BYTES = 256 * 1024  # replies joined into one write; written bytes count as held
# Memory of a decoded request without its body: measured 400 to 700 bytes.
_REQUEST_BYTES = 600

_NO_PEER = ("0.0.0.0", 0)
# A read of this size has filled the event loop's buffer (256,000 bytes in uvloop, 256 KiB in asyncio). uvloop then
# keeps reading, up to 32 times before anything else runs: 0.24 s of sends during which no timer runs.
_FULL_READ_BYTES = 200_000
_log = structlog.get_logger(__name__)


class Service(Protocol):
    """The application behind a listener: the broker or the name server."""

    def on_connect(self, connection: "Connection") -> None:
        """Handle a new client connection."""
        ...

    def serve(self, connection: "Connection", command: Command) -> bytes | None:
        """Return the complete reply frame, or None if `connection.send` sends it later or there is no reply."""
        ...

    def on_turn_end(self) -> None:
        """Handle the end of a turn, after all its commands: commit them as a group and wake waiting clients."""
        ...

    def on_drained(self, connection: "Connection") -> None:
        """Handle a client that was behind with reading (`is_paused`) and has caught up."""
        ...

    def on_disconnect(self, connection: "Connection") -> None:
        """Handle a lost connection. Nothing more can be sent to this client."""
        ...


class Lane(Protocol):
    """A fast path for runs of ordinary requests."""

    def serve_runs(self, connection: "Connection", commands: list[Command], at: int, replies: list[bytes]) -> int:
        """Serve a run of commands from index `at`, and return the index after the run.

        It appends a reply for each, unless replies are sent later.
        """
        ...


Lanes = Mapping[type[Command], Lane]  # by the type of the requests


class CloseReason(Enum):
    """Why a server closed a connection, other than to free memory for others."""

    MALFORMED = "malformed"  # a frame or a header that is too long or invalid
    UNREAD = "unread"
    IDLE = "idle"
    UNAUTHENTICATED = "unauthenticated"  # too many requests with a wrong signature or user


class Owner(Protocol):
    """The owner of connections: it admits, counts and forgets them."""

    config: ServerConfig
    clock: Clock
    turns: Turns
    held: HeldBytes
    received_frames: int
    refused_codes: Counter[int]
    close_counts: Counter[CloseReason]
    decode: Callable[[int, bytes, bytes], Command]  # decodes the requests of its connections

    def admit(self, connection: "Connection") -> bool: ...

    def forget(self, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    """The connection of one client. The service answers requests in order; `send` and `call` work at any time."""

    __slots__ = (
        "_active",
        "_admitted",
        "_calls",
        "_closing_since_s",
        "_is_aborted",
        "_is_blocked",
        "_is_free",
        "_is_in_line",
        "_is_lost",
        "_is_reading",
        "_last_opaque",
        "_monotonic_s",
        "_owner",
        "_paused_since_s",
        "_quiet_since_s",
        "_reader",
        "_refusal_logged",
        "_reported_bytes",
        "_service",
        "_sliced_requests",
        "_transport",
        "_turns",
        "_unsent_bytes",
        "_waiting",
        "_write_limit_bytes",
        "attachment",
        "certificate_user",
        "failed_attempts",
        "is_encrypted",
        "lanes",
        "peer",
        "peer_host",
        "verdicts",
    )

    def __init__(self, service: Service, owner: Owner) -> None:
        self.peer: tuple[str, int] = _NO_PEER
        self.peer_host: bytes = b""
        self.attachment: object | None = None  # state that the service keeps for this connection
        self.verdicts: object | None = None  # what the access check keeps for this connection
        self.failed_attempts = 0  # requests that were not authenticated
        self.is_encrypted = False
        self.certificate_user = ""  # the common name of the client's verified certificate
        self.lanes: Lanes = {}  # set by services that have lanes
        self._service = service
        self._owner = owner
        self._turns = owner.turns
        self._monotonic_s = owner.clock.monotonic_s
        self._reader = FrameReader(owner.config.max_frame, owner.decode, owner.config.max_header)
        self._write_limit_bytes = int(owner.config.write_buffer)
        self._transport = cast(asyncio.Transport, None)  # set by connection_made
        self._admitted = False
        self._waiting: list[Command] = []  # decoded but not yet served; the reader may hold more
        self._unsent_bytes = 0  # replies of the current turn
        self._reported_bytes = 0  # the held bytes last reported to the owner
        self._is_in_line = False
        self._is_free = True  # requests are served on arrival; see _update_is_free
        self._is_reading = True
        self._is_aborted = False
        self._is_lost = False
        self._sliced_requests = 0
        self._is_blocked = False
        self._calls: dict[int, asyncio.Future[Command]] | None = None
        self._last_opaque = 0
        # Set by every frame in either direction and cleared by the sweep: cheaper than storing the time of each frame.
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
        """Whether the peer has unread data pending. Unsolicited frames should wait until it catches up."""
        return self._paused_since_s is not None

    @property
    def peer_name(self) -> str:
        return f"{self.peer[0]}:{self.peer[1]}"

    def encrypt(self, transport: asyncio.Transport) -> None:
        """Continue on a transport with TLS, before anything was sent or received."""
        self._transport = transport
        self.is_encrypted = True

    def send(self, frame: bytes) -> None:
        """Send a late reply or a notification. The frame is dropped if the connection is closing."""
        if not self._transport.is_closing():
            self._active = True
            self._transport.write(frame)
            if self._transport.get_write_buffer_size() > FREE_REPLY_BYTES:
                self.recount()

    def begin_work(self) -> None:
        """Count a request that is answered in slices, until `end_work`. At the limit, no other request is served."""
        self._sliced_requests += 1
        self._is_free = self._is_free and self._sliced_requests < MAX_SLICED_REQUESTS

    def end_work(self) -> None:
        self._sliced_requests -= 1
        if self._sliced_requests == MAX_SLICED_REQUESTS - 1:
            self._continue()

    def set_blocked(self, is_blocked: bool) -> None:
        """Stop serving requests, or resume with `is_blocked=False`."""
        self._is_blocked = is_blocked
        self._continue()

    def slow_down(self, pause_s: float) -> None:
        """Serve no further request for a while."""
        self.set_blocked(True)
        asyncio.get_running_loop().call_later(pause_s, self.set_blocked, False)

    def close_soon(self, reason: CloseReason) -> None:
        """Serve no further request, and close after the reply to the current one."""
        self._owner.close_counts[reason] += 1
        self.set_blocked(True)
        asyncio.get_running_loop().call_soon(self.close)

    def recount(self) -> None:
        """Report the held bytes to the owner: incomplete frames, unserved requests and unread replies."""
        unread_bytes = 0 if self._is_lost or self._is_aborted else self._transport.get_write_buffer_size()
        held_bytes = self._reader.held_bytes + (unread_bytes if unread_bytes > FREE_REPLY_BYTES else 0)
        if self._waiting:
            held_bytes += sum(_REQUEST_BYTES + len(command.body) for command in self._waiting)
        if held_bytes != self._reported_bytes:
            self._reported_bytes = held_bytes
            self._owner.held.change(self, held_bytes, self._owner.clock.monotonic_s())
        if unread_bytes > FREE_REPLY_BYTES and self._owner.held.is_tight:
            self._set_write_limit(TIGHT_REPLY_BYTES)

    def _set_write_limit(self, limit_bytes: int) -> None:
        """Set how many unread bytes pause the connection. This may pause the peer at once."""
        if limit_bytes != self._write_limit_bytes and not self.is_closing:
            self._write_limit_bytes = min(limit_bytes, int(self._owner.config.write_buffer))
            self._transport.set_write_buffer_limits(high=self._write_limit_bytes)

    def release(self) -> str:
        """Release everything that is held, and return a description of how."""
        if not self._waiting and self._transport.get_write_buffer_size() <= FREE_REPLY_BYTES:
            command = self._reader.drop()
            if command is not None:
                self.recount()
                if not command.flag & (FLAG_RESPONSE | FLAG_ONEWAY):
                    self.send(self.refuse(command, _too_much_held()))
                return "its request was rejected"
        self.abort()
        self.recount()
        return "the server closed the connection"

    def call(
        self, code: int, *, fields: Mapping[str, str] | None = None, body: bytes = b"", timeout_s: float
    ) -> "asyncio.Future[Command]":
        """Send a request to the client. Without an answer, the future raises TimeoutError or ConnectionResetError."""
        if self._calls is None:
            self._calls = {}
        if len(self._calls) >= MAX_CALLS:
            raise Busy(
                f"client {self.peer_name} has not answered {MAX_CALLS} requests", hint="Try again when it has answered"
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Command] = loop.create_future()
        if self.is_closing:
            future.set_exception(ConnectionResetError(f"client {self.peer_name} has gone"))
            return future
        opaque = self._last_opaque = (self._last_opaque + 1) & 0x7FFFFFFF
        calls = self._calls
        calls[opaque] = future
        timer = loop.call_later(timeout_s, self._time_out_call, opaque)

        def end(_: "asyncio.Future[Command]") -> None:
            timer.cancel()
            calls.pop(opaque, None)

        future.add_done_callback(end)
        self.send(encode_frame(code, opaque, fields=fields, body=body))
        return future

    def enable_keepalive(self) -> None:
        """Turn on TCP keepalive: the kernel detects a dead peer host within half a minute."""
        sock = self._transport.get_extra_info("socket")
        for level, option, value in (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
        ):
            sock.setsockopt(level, option, value)

    def close(self) -> None:
        """Close after all sent frames are written."""
        if self._closing_since_s is None:
            self._closing_since_s = self._owner.clock.monotonic_s()
            self._is_free = False
            self._waiting = []
            self._reader.clear()
            self._transport.close()

    def abort(self) -> None:
        """Close at once. Frames that are sent but not yet written are lost."""
        self.close()
        self._is_aborted = True
        self._transport.abort()

    def disconnect(self, reason: str) -> None:
        """Abort because the peer does not read, and log the reason."""
        _log.warning("connection aborted", peer=self.peer_name, reason=reason)
        self._owner.close_counts[CloseReason.UNREAD] += 1
        self.abort()

    def sweep(self, now_s: float) -> None:
        """Periodic check: cut off a stalled connection, close an idle one."""
        config = self._owner.config
        stalled_s = config.stalled_timeout / 1000
        self._refusal_logged = False
        if self._closing_since_s is not None:
            if now_s - self._closing_since_s >= stalled_s:
                self._transport.abort()
        elif self._paused_since_s is not None:
            if now_s - self._paused_since_s >= stalled_s:
                self.disconnect(f"the client read nothing for {stalled_s:g} s")
        elif self._active or self._has_requests:
            self._active = False
            self._quiet_since_s = now_s
        elif now_s - self._quiet_since_s >= config.idle_timeout / 1000:
            # Only complete frames count as activity: sending a frame byte by byte does not keep a connection open.
            reason = "a frame was not completed in time" if self._reader.held_bytes else "idle"
            _log.info("connection closed", peer=self.peer_name, reason=reason)
            self._owner.close_counts[CloseReason.IDLE] += 1
            self.close()

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._quiet_since_s = self._owner.clock.monotonic_s()
        # None if the peer disconnected before it was accepted.
        address = transport.get_extra_info("peername") or _NO_PEER
        self.peer = (plain_ip(address[0]), address[1])
        if not self._owner.admit(self):
            self._closing_since_s = self._quiet_since_s
            self._transport.abort()
            return
        self._admitted = True
        self.peer_host = pack_host(*self.peer)
        self._transport.set_write_buffer_limits(high=self._write_limit_bytes)
        self._service.on_connect(self)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if not self._is_free or self._turns.is_used_up:
            if self._closing_since_s is None:
                reader.hold(data)
                self._wait_for_turn()
            return
        commands = reader.feed(data, FRAMES_PER_DECODE)
        if commands:
            self._active = True
            self._owner.received_frames += len(commands)
            self._serve_turn(commands, self._turns.turn_s)
        elif reader.broken is not None:
            self._close_broken()
        if self._reported_bytes or not reader.is_clear:
            self.recount()
        if len(data) >= _FULL_READ_BYTES and self._is_reading:
            self._stop_reading()
            asyncio.get_running_loop().call_soon(self._continue)

    def _wait_for_turn(self) -> None:
        if self._is_free:
            self._join()
            self._turns.join_new(self)
        self.recount()

    def pause_writing(self) -> None:
        self._paused_since_s = self._owner.clock.monotonic_s()
        self._is_free = False
        self._stop_reading()

    def resume_writing(self) -> None:
        self._paused_since_s = None
        if not self._owner.held.is_tight:
            self._set_write_limit(int(self._owner.config.write_buffer))
        self._continue()
        self.recount()
        if self._paused_since_s is None and not self.is_closing:
            self._service.on_drained(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._admitted:
            return
        self._is_lost = True
        for future in list((self._calls or {}).values()):
            if not future.done():
                future.set_exception(ConnectionResetError(f"client {self.peer_name} has gone"))
        # Requests received before the close are still served: they may be one-way.
        self._paused_since_s = None
        self._continue()

    def _finish_close(self) -> None:
        if self._reader.held_bytes and self._closing_since_s is None:
            _log.info("connection lost", peer=self.peer_name, reason="it ended within a frame")
        self._waiting = []
        self._reader.clear()
        self.recount()
        self._admitted = False
        self._owner.forget(self)
        self._service.on_disconnect(self)

    # Pending work and permission to serve it

    @property
    def _has_requests(self) -> bool:
        return bool(self._waiting) or self._reader.has_more

    def _update_is_free(self) -> None:
        self._is_free = not (
            self._is_in_line
            or self._is_blocked
            or self._sliced_requests >= MAX_SLICED_REQUESTS
            or self._paused_since_s is not None
            or self._closing_since_s is not None
        )

    def _join(self) -> None:
        """Stop reading until the next turn. The caller adds this connection to a line."""
        self._stop_reading()
        self._is_in_line = True
        self._is_free = False

    def _continue(self) -> None:
        """Serve pending requests, resume reading or finish closing, whichever is possible now."""
        self._update_is_free()
        if self._is_free and self._has_requests:
            self._join()
            self._turns.join(self)
        elif self._is_lost:
            if self._admitted and not self._has_requests:
                self._finish_close()
        elif self._is_free:
            if self._reader.broken is not None:
                self._close_broken()
            elif not self._is_reading and not self.is_closing:
                self._is_reading = True
                self._transport.resume_reading()
        else:
            self._stop_reading()

    def _stop_reading(self) -> None:
        if self._is_reading and not self.is_closing:
            self._is_reading = False
            self._transport.pause_reading()

    def _decode_frames(self) -> list[Command]:
        commands = self._reader.cut(FRAMES_PER_DECODE)
        if commands:
            self._active = True
            self._owner.received_frames += len(commands)
        return commands

    def run_turn(self, turn_s: float) -> None:
        """Serve pending requests for up to `turn_s`."""
        self._is_in_line = False
        self._update_is_free()
        if self._is_free:
            commands, self._waiting = self._waiting or self._decode_frames(), []
            self._serve_turn(commands, turn_s)
            if self._reported_bytes:
                self.recount()
        self._continue()

    # Serving requests

    def _serve_turn(self, commands: list[Command], turn_s: float) -> None:
        """Serve these commands and those after them until the turn is used up, and write the replies."""
        reader, turns, monotonic_s = self._reader, self._turns, self._monotonic_s
        began_s = monotonic_s()
        until_s = began_s + turn_s
        replies: list[bytes] = []
        while True:
            at = self._serve(commands, replies, until_s)
            if at < len(commands):
                self._waiting = commands[at:] if self._closing_since_s is None else []
                break
            if reader.is_clear or not (reader.has_more and self._is_free) or monotonic_s() >= until_s:
                break
            commands = self._decode_frames()
        if replies:
            self._write(replies)
        try:
            self._service.on_turn_end()
        except Exception:
            _log.exception("end of turn failed", peer=self.peer_name)
        turns.spent_s += monotonic_s() - began_s
        if turns.spent_s >= turns.turn_s:
            turns.use_up()
        if not (self._is_free and reader.is_clear) or self._waiting:
            self._continue()

    def _serve(self, commands: list[Command], replies: list[bytes], until_s: float) -> int:
        """Serve commands while this connection may; return the index of the first unserved one."""
        serve, monotonic_s = self._service.serve, self._monotonic_s
        at, end = 0, len(commands)
        while at < end:
            if (lane := self.lanes.get(type(commands[at]))) is not None:  # an earlier request may have closed it
                # A run is part of one read, so the size of its replies is not checked in between.
                first = len(replies)
                try:
                    at = lane.serve_runs(self, commands, at, replies)
                except Exception:
                    self._close_after_failed_run(replies)
                    return end
                if len(replies) > first:
                    self._unsent_bytes += sum(map(len, replies[first:]))
                if at == end:
                    break
            command = commands[at]
            try:
                reply = None
                if command.flag & FLAG_RESPONSE:
                    self._on_answer(command)
                else:
                    reply = serve(self, command)
            except Exception as error:
                reply = self.refuse(command, error)
            at += 1
            if reply is not None and not command.flag & FLAG_ONEWAY:
                replies.append(reply)
                self._unsent_bytes += len(reply)
                if self._unsent_bytes > JOINED_BYTES or self._unsent_bytes > self._write_limit_bytes:
                    self._write(replies)
            if not self._is_free or (at < end and monotonic_s() >= until_s):
                break
        return at

    def _write(self, replies: list[bytes]) -> None:
        self.send(b"".join(replies) if len(replies) > 1 else replies[0])
        replies.clear()
        self._unsent_bytes = 0

    def _close_after_failed_run(self, replies: list[bytes]) -> None:
        """Close the connection after the lane has failed.

        It is unknown how much of the run is stored, and serving the run again might store messages twice. The client
        loses the connection and its outstanding answers, as in a network failure.
        """
        _log.exception("connection closed", peer=self.peer_name, reason="a run of messages was stored only in part")
        if replies:
            self._write(replies)
        self.close()

    def refuse(self, command: Command, error: Exception) -> bytes:
        """Return the error reply to a failed request. Log the error unless it is an ordinary one."""
        if not isinstance(error, LaterMQError):
            self._owner.refused_codes[LaterMQError.code] += 1
            _log.error("request failed", peer=self.peer_name, request=command.code, exc_info=error)
            return encode_response(command, LaterMQError.code, remark=f"internal error: {type(error).__name__}")
        self._owner.refused_codes[error.code] += 1
        # One line per sweep: a client that repeats its mistake must not fill the disk with log lines.
        if not (self._refusal_logged or error.is_expected):
            self._refusal_logged = True
            level = _log.debug if error.retriable else _log.info
            level("request rejected", peer=self.peer_name, request=command.code, code=error.code, reason=error.remark)
        return encode_response(command, error.code, remark=error.remark)

    def _on_answer(self, command: Command) -> None:
        future = self._calls.get(command.opaque) if self._calls else None
        if future is not None and not future.done():
            future.set_result(command)

    def _time_out_call(self, opaque: int) -> None:
        future = self._calls.get(opaque) if self._calls else None
        if future is not None and not future.done():
            future.set_exception(TimeoutError(f"client {self.peer_name} did not reply in time"))

    def _close_broken(self) -> None:
        if self._closing_since_s is None:
            _log.warning("connection closed", peer=self.peer_name, reason=str(self._reader.broken))
            self._owner.close_counts[CloseReason.MALFORMED] += 1
            self.close()


def _too_much_held() -> Busy:
    return Busy(
        "the server holds too many bytes of incomplete requests", hint="Try again later, or send smaller requests"
    )
