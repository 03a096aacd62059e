"""One accepted HTTP/2 connection on a socket: plaintext or TLS, one write per turn, and its timeouts."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol, cast

import structlog

from latermq.addresses import plain_ip
from latermq.clock import Clock
from latermq.protocol.http2.connection import ServerConnection
from latermq.protocol.http2.frames import ConnectionFault, ErrorCode
from latermq.protocol.http2.header_cache import HeaderCache
from latermq.protocol.http2.outbox import Outbox
from latermq.protocol.http2.stream import Stream
from latermq.protocol.proxy_protocol import ProxyHeaderError, read_proxy_header
from latermq.server.http2.deadlines import Deadlines
from latermq.server.http2.transport_limits import TransportLimits
from latermq.server.remoting.held_bytes import HeldBytes
from latermq.tls.stream import HANDSHAKE_RECORD, TlsStream

# Below these, a connection does not count its bytes: the next turn sends or serves them.
FREE_BYTES = 64 * 1024
FREE_STREAMS = 64
MAX_UNREAD = 4_096  # notices of `when_read`; the oldest are then taken as read
STREAM_BYTES = 2000  # measured: a waiting call with its stream and metadata
_NO_PEER = ("0.0.0.0", 0)
_log = structlog.get_logger(__name__)


class StreamHandler(Protocol):
    """What a connection does with its streams. It must not raise."""

    def handle(self, stream: Stream) -> None:
        """A stream is new, has data, has ended or was reset."""
        ...

    def sweep(self, now_s: float) -> None:
        """Periodic check for requests that do not arrive."""
        ...


class Owner(Protocol):
    """The owner of connections: it admits, counts and forgets them."""

    limits: TransportLimits
    clock: Clock
    cache: HeaderCache
    requires_tls: bool
    held: HeldBytes
    deadlines: Deadlines

    @property
    def tls(self) -> ssl.SSLContext | None: ...

    def is_balancer(self, ip: str) -> bool: ...

    def admit(self, connection: "Http2Connection") -> bool: ...

    def readdress(self, connection: "Http2Connection", peer: tuple[str, int]) -> bool: ...

    def forget(self, connection: "Http2Connection") -> None: ...

    def failed(self, connection: "Http2Connection", error: str, reason: str) -> None: ...


HandlerFactory = Callable[["Http2Connection"], StreamHandler]


class Http2Connection(asyncio.Protocol):
    """A connection. The first byte decides whether it is TLS."""

    __slots__ = (
        "_connected_s",
        "_counted_bytes",
        "_finished_calls",
        "_handler",
        "_idle_since_s",
        "_is_admitted",
        "_is_busy",
        "_is_lingering",
        "_is_paused",
        "_is_scheduled",
        "_is_sniffed",
        "_linger_since_s",
        "_linger_timer",
        "_monotonic_s",
        "_owner",
        "_probed",
        "_probed_s",
        "_progress",
        "_progress_s",
        "_proxy_header",
        "_tls",
        "_transport",
        "_unread",
        "awaits_proxy_header",
        "deadlines",
        "failed_attempts",
        "http2",
        "loop",
        "peer",
        "verdicts",
        "waiting",
    )

    def __init__(self, owner: Owner, new_handler: HandlerFactory) -> None:
        self.peer: tuple[str, int] = _NO_PEER
        self._owner = owner
        self.deadlines = owner.deadlines
        self._monotonic_s = owner.clock.monotonic_s
        self._connected_s = now_s = self._monotonic_s()
        self.http2 = ServerConnection(owner.limits.http2, owner.cache, now_s)
        self._handler = new_handler(self)
        self._transport = cast(asyncio.Transport, None)  # set by connection_made
        self.loop = cast(asyncio.AbstractEventLoop, None)
        self._tls: TlsStream | None = None
        self.waiting: dict[Stream, Callable[[], None]] = {}  # for room to write
        self.verdicts: object | None = None  # of the access check
        self.failed_attempts = 0  # calls without a valid signature
        self.awaits_proxy_header = False
        self._proxy_header = b""  # while it is incomplete
        self._is_sniffed = False
        self._is_admitted = False
        self._is_busy = False
        self._is_scheduled = False
        self._is_paused = False
        self._is_lingering = False
        self._linger_since_s = 0.0
        self._linger_timer: asyncio.TimerHandle | None = None
        self._idle_since_s = now_s
        self._finished_calls = 0
        self._counted_bytes = 0  # the held bytes last reported to the owner
        self._progress = 0
        self._progress_s = now_s
        # By stream, for what was sent since the last probe, and for what was sent before it.
        self._unread: dict[int, Callable[[bool], None]] = {}
        self._probed: dict[int, Callable[[bool], None]] = {}
        self._probed_s = now_s

    @property
    def limits(self) -> TransportLimits:
        return self._owner.limits

    @property
    def is_tls(self) -> bool:
        return self._tls is not None

    @property
    def certificate_user(self) -> str:
        """The common name of the client's verified certificate. Empty if there is none."""
        return self._tls.common_name if self._tls is not None else ""

    @property
    def peer_name(self) -> str:
        return f"{self.peer[0]}:{self.peer[1]}"

    def now_s(self) -> float:
        return self._monotonic_s()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.loop = asyncio.get_running_loop()
        ip, port = (transport.get_extra_info("peername") or _NO_PEER)[:2]
        self.peer = (plain_ip(ip), port)
        self.awaits_proxy_header = self._owner.is_balancer(self.peer[0])
        self._is_admitted = self._owner.admit(self)
        if not self._is_admitted:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self.limits.write_buffer_bytes)

    def data_received(self, data: bytes) -> None:
        if self._is_lingering or not self._is_admitted:
            return
        if not self._is_sniffed:
            if self.awaits_proxy_header:
                data = self._without_proxy_header(data)
                if not data:
                    return
            self._is_sniffed = True
            context = self._owner.tls
            if data[0] == HANDSHAKE_RECORD and context is not None:
                self._tls = TlsStream(context)
            elif self._owner.requires_tls:
                self._owner.failed(self, "TLS", "the client does not use TLS, which tls.mode requires")
                self.abort()
                return
        if self._tls is not None:
            try:
                data = self._tls.receive(data)
            except ssl.SSLError as error:
                self._write_tls()  # the alert
                self._owner.failed(self, "TLS", error.reason or str(error))
                self._linger()
                return
        self._is_busy = True  # what handlers send leaves in the one write below
        try:
            handle = self._handler.handle
            for stream in self.http2.receive(data, self._monotonic_s()):
                handle(stream)
        finally:
            self._is_busy = False
        if self._unread or self._probed:
            for stream_id in self.http2.reset_ids:
                self._report_reset(stream_id)
            if self._probed and not self.http2.is_probing:
                self._report_read(True)
        self._flush()

    def _without_proxy_header(self, data: bytes) -> bytes:
        """Read the header of a load balancer, and return the bytes of the client after it."""
        data = self._proxy_header + data
        try:
            header = read_proxy_header(data)
        except ProxyHeaderError as error:
            self._owner.failed(self, "PROXY_HEADER", str(error))
            self.abort()
            return b""
        if header is None:
            self._proxy_header = data
            return b""
        self._proxy_header = b""
        self.awaits_proxy_header = False
        if header.source is not None:
            ip, port = header.source
            if not self._owner.readdress(self, (plain_ip(ip), port)):
                self.abort()
                return b""
        return data[header.size_bytes :]

    def pause_writing(self) -> None:
        self._is_paused = True
        self.http2.outbox.pause()

    def resume_writing(self) -> None:
        self._is_paused = False
        self.http2.outbox.resume()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self._close_streams(ConnectionFault(ErrorCode.CANCEL, "the connection is lost"))
        self._report_read(False)
        if self._counted_bytes:
            self.recount()
        if self._is_admitted:
            self._owner.forget(self)

    # Called by handlers and the owner

    def schedule_flush(self) -> None:
        """Write what is in the outbox, at the end of this turn of the loop."""
        if not self._is_busy and not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self._flush)

    def is_writable(self, stream: Stream) -> bool:
        """Whether the peer keeps up with what is sent on a stream."""
        return (
            stream.unsent_bytes <= self.limits.stream_buffer_bytes
            and self.http2.outbox.queued_bytes <= self.limits.http2.max_unsent_bytes >> 1
        )

    def when_writable(self, stream: Stream, then: Callable[[], None]) -> None:
        """Call `then` once, when the stream is writable again or closed."""
        self.waiting[stream] = then

    def when_read(self, stream: Stream, then: Callable[[bool], None]) -> None:
        """Call `then` once: with true when the peer has read all that was sent on a stream, else with false.

        The next sweep asks the peer. It is false if the connection is lost before the answer, or the peer resets the
        stream: it has given up the call then, and ignores what arrives.
        """
        self._unread[stream.id] = then
        if len(self._unread) > MAX_UNREAD:
            self._unread.pop(next(iter(self._unread)))(True)

    def stop_waiting(self, stream: Stream) -> None:
        """Make the call that `when_writable` promised."""
        then = self.waiting.pop(stream, None)
        if then is not None:
            try:
                then()
            except Exception:
                _log.exception("a call failed", path=stream.request.path.decode(errors="replace"))
                self.http2.reset(stream, ErrorCode.INTERNAL_ERROR)

    def recount(self) -> None:
        """Report the held bytes to the owner: requests, unsent answers and the streams themselves."""
        http2 = self.http2
        held_bytes = http2.held_bytes + http2.outbox.unsent_bytes + len(http2.streams) * STREAM_BYTES
        if not self._transport.is_closing():
            held_bytes += self._transport.get_write_buffer_size()
        if held_bytes <= FREE_BYTES:
            held_bytes = 0
        if held_bytes != self._counted_bytes:
            self._counted_bytes = held_bytes
            self._owner.held.change(self, held_bytes, self._monotonic_s())

    def release(self) -> str:
        """Release everything, because all connections together hold too much and this one holds most."""
        fault = ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"it holds {self._counted_bytes} bytes")
        self._owner.failed(self, fault.error.name, fault.message)
        self.abort()
        self._close_streams(fault)
        self.recount()
        return "it was cut off"

    def leave(self) -> None:
        """Begin a graceful stop. The connection closes when its calls have ended."""
        if not self.http2.is_greeted:
            self.abort()
            return
        self._probe(self.now_s())
        self.http2.leave()
        self.loop.call_later(self.limits.linger_s, self._finish_leaving)
        self._flush()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def sweep(self, now_s: float) -> None:
        """Periodic check: close a connection that is idle, stalled or silent."""
        limits = self.limits
        http2 = self.http2
        if self._is_lingering:
            return
        if not http2.is_greeted:
            if now_s - self._connected_s >= limits.greeting_timeout_s:
                self._owner.failed(self, "TIMEOUT", "the connection preface did not arrive")
                self.abort()
            return
        self._handler.sweep(now_s)
        progress = http2.outbox.sent_data_bytes - self._transport.get_write_buffer_size()
        if progress != self._progress or not (http2.outbox.queued_bytes or self._is_paused):
            self._progress = progress
            self._progress_s = now_s
        elif now_s - self._progress_s >= limits.stall_timeout_s:
            self._owner.failed(self, "STALLED", f"{http2.outbox.unsent_bytes} bytes wait to be read")
            self.abort()
            return
        if self._unread:
            self._probe(now_s)
            self._flush()
        if http2.is_probing and now_s - self._probed_s >= limits.stall_timeout_s:
            self._owner.failed(self, "STALLED", "a PING frame was not answered")
            self.abort()
            return
        if http2.streams or http2.finished_calls != self._finished_calls:
            self._finished_calls = http2.finished_calls
            self._idle_since_s = now_s
        elif now_s - self._idle_since_s >= limits.idle_timeout_s and not http2.is_leaving:
            self.leave()

    def _probe(self, now_s: float) -> None:
        """Ask whether the peer has read everything. Data that waits for its window is sent after the question."""
        if self._unread and not self.http2.is_probing and not self.http2.outbox.queued_bytes:
            self._probed, self._unread, self._probed_s = self._unread, {}, now_s
            self.http2.probe()

    def _report_read(self, is_read: bool) -> None:
        """Call those of `when_read`: all of them if the connection is lost."""
        notices, self._probed = list(self._probed.values()), {}
        if not is_read:
            notices, self._unread = [*notices, *self._unread.values()], {}
        for then in notices:
            then(is_read)

    def _report_reset(self, stream_id: int) -> None:
        then = self._probed.pop(stream_id, None) or self._unread.pop(stream_id, None)
        if then is not None:
            then(False)

    # Writing and closing

    def _flush(self) -> None:
        self._is_scheduled = False
        if self._is_lingering:
            return
        http2 = self.http2
        self._write(http2.outbox)
        if self.waiting:
            self._wake()  # what they send leaves in the next turn
        if self._is_paused or http2.outbox.queued_bytes:
            fault = http2.unread_fault(self._transport.get_write_buffer_size())
            if fault is not None:
                self._owner.failed(self, fault.error.name, fault.message)
                self._close_streams(fault)
                self.abort()
                return
        if (
            self._counted_bytes
            or self._is_paused
            or http2.held_bytes + http2.outbox.queued_bytes > FREE_BYTES
            or len(http2.streams) > FREE_STREAMS
        ):
            self.recount()
        if http2.is_ended:
            if http2.fault is not None:
                self._owner.failed(self, http2.fault.error.name, http2.fault.message)
            self._linger()
        elif http2.has_left and not http2.streams:
            self._linger()

    def _write(self, outbox: Outbox) -> None:
        """Write frames until there are no more or the socket's buffer is full, which pauses the outbox."""
        if self._tls is None:
            while outbox.has_frames and self._is_sniffed:
                self._transport.write(outbox.take())
                if outbox.queued_bytes:
                    outbox.pump()
            return
        while outbox.has_frames and self._tls.is_ready:
            self._tls.send(outbox.take())
            self._write_tls()
            if outbox.queued_bytes:
                outbox.pump()
        self._write_tls()

    def _write_tls(self) -> None:
        assert self._tls is not None
        data = self._tls.take()
        if data:
            self._transport.write(data)

    def _wake(self) -> None:
        for stream in [stream for stream in self.waiting if stream.is_closed or self.is_writable(stream)]:
            self.stop_waiting(stream)

    def _close_streams(self, fault: ConnectionFault) -> None:
        """Report the end of all open streams."""
        streams = list(self.http2.streams.values())
        self.http2.end(fault)
        for stream in streams:
            self._handler.handle(stream)
        self._wake()

    def _finish_leaving(self) -> None:
        """The peer has had time to see the first GOAWAY frame, even if it does not answer the PING."""
        if not self._is_lingering and not self._transport.is_closing():
            self.http2.finish_leaving()
            self._flush()

    def _linger(self) -> None:
        """Close the sending side and wait for the peer to close.

        A close of both sides at once makes the kernel reset the connection if more arrives, and a reset destroys what
        the peer has not read yet.
        """
        self._is_lingering = True
        self._linger_since_s = self._monotonic_s()
        self._linger_timer = self.loop.call_later(self.limits.linger_s, self._end_lingering)
        if self._tls is not None:
            self._tls.close()
            self._write_tls()
        elif not self._transport.is_closing():
            self._transport.write_eof()

    def _end_lingering(self) -> None:
        is_unread = self._transport.get_write_buffer_size() > 0
        if is_unread and self._monotonic_s() - self._linger_since_s < self.limits.stall_timeout_s:
            self._linger_timer = self.loop.call_later(self.limits.linger_s, self._end_lingering)
        else:
            self._transport.abort()
