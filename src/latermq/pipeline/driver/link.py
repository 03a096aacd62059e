"""The pipeline's requests to one broker, over a blocking connection that Spark can pickle for its workers."""

import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from latermq.client.session.connection import split_address, tls_hint
from latermq.client.session.credentials import Credentials, credentials_from_environment
from latermq.client.session.failures import (
    AccessRefused,
    ConnectFailed,
    ConnectionLost,
    RequestTimedOut,
    error_from_wire,
)
from latermq.errors import CorruptStore, LaterMQError, MalformedFrame
from latermq.message.names import is_file_name
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline_secret import Recipient, sign
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import (
    MAX_FRAME_BYTES,
    PREFIX_BYTES,
    Command,
    decode_frame,
    decode_prefix,
    encode_frame,
)
from latermq.protocol.remoting.json_body import decode_body
from latermq.protocol.remoting.pipeline import (
    SIGNATURE,
    BeginPipelineHeader,
    CommitIngestHeader,
    PullRecordsHeader,
    WindowNumberHeader,
    WindowReadyHeader,
    WindowReports,
    decode_state,
    signed_fields,
)
from latermq.retry import Backoff
from latermq.tls.client import tls_from_environment
from latermq.tls.contexts import reason_of

PULL_BYTES = 1 << 20  # larger pulls delay the broker's deliveries too long
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0

_RIGHTS = (
    "Work on timers needs Get on the cluster, and Pub on every topic whose timers it schedules, cancels or moves, "
    "for example `latermq acl grant USER Topic:orders Pub`"
)
_EXECUTORS = "Spark's executors on other machines need LATERMQ_USER and LATERMQ_SECRET_FILE in spark.executorEnv"

_Result = TypeVar("_Result")


class _PulledFields(msgspec.Struct, kw_only=True):
    """Header fields of the PULL_RECORDS response."""

    nextOffset: int
    minOffset: int
    flushedOffset: int


class _OffsetField(msgspec.Struct):
    """Header field of the GET_MIN_OFFSET response."""

    offset: int


class PulledRecords(NamedTuple):
    """Whole records end to end, with the queue's next, first and flushed offsets."""

    records: bytearray
    next_offset: int
    min_offset: int
    flushed_offset: int


@dataclass(frozen=True)
class QueueRange:
    """Entries [start, end) of one queue of one broker. `epoch` is the ingesting driver's, when a driver pulls."""

    topic: str
    queue_id: int
    start: int
    end: int
    epoch: int | None = None


class BrokerLink:
    """A connection to one server, opened at first use and reopened after a loss.

    Every request of the pipeline is repeatable. Transient failures, for example during a broker restart, are therefore
    retried for `patience_s`.
    """

    def __init__(self, address: str, *, timeout_s: float = 30.0, patience_s: float = 20.0, secret: bytes = b"") -> None:
        """With `secret` this is a driver's connection: it signs `begin`, `commit_ingest` and `window_ready`."""
        split_address(address)
        self._secret = secret
        self._recipient: Recipient | None = None  # the process that answers on this connection
        self.address = address
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._socket: socket.socket | None = None
        self._credentials: Credentials | None = None  # read for each connection: the secret may have changed
        self._opaques = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """The settings without the secret: a copy opens its own connection and cannot act as the driver."""
        return {"address": self.address, "timeout_s": self._timeout_s, "patience_s": self._patience_s}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._recipient = None

    def state(self, *, flush: bool = False) -> PipelineState:
        """The broker's report on its timers and windows.

        With `flush` the broker first flushes all acknowledged entries.
        """
        return self._with_retries(lambda: self._fetch_state({"flush": "true"} if flush else {}))

    def _fetch_state(self, fields: Mapping[str, str]) -> PipelineState:
        state = _decode_state_body(self._receive(self._send(Request.PIPELINE_STATE, fields))[1])
        self._recipient = Recipient(state.store_id, state.instance)
        return state

    def begin(self, token: str, table_end: int) -> PipelineState:
        """Become the ingesting driver. The returned epoch is this driver's; the broker now refuses older ones.

        `token` is the one written to the folder. `table_end` is the first entry that the table lacks. The broker grants
        no epoch if it does not find the token, or if it no longer holds the entries from `table_end` on.
        """
        header = BeginPipelineHeader(token=token, tableEnd=table_end, afterEpoch=self.state().epoch)
        return _decode_state_body(self._call_signed(Request.BEGIN_PIPELINE, header))

    def commit_ingest(self, offset: int, epoch: int) -> None:
        """Report that all entries below `offset` are in the timeline."""
        self._call_signed(Request.COMMIT_INGEST, CommitIngestHeader(offset=offset, epoch=epoch))

    def window_ready(self, number: int, attempt: str, epoch: int) -> None:
        """Report that an attempt of a window is ready to be loaded."""
        self._call_signed(Request.WINDOW_READY, WindowReadyHeader(number=number, attempt=attempt, epoch=epoch))

    def _call_signed(self, code: int, header: msgspec.Struct) -> bytearray:
        """The body of the response. The signature names the answering process, so each reconnection signs again."""
        fields = signed_fields(header)

        def call() -> bytearray:
            if self._recipient is None:
                self._fetch_state({})
            assert self._recipient is not None
            signature = {SIGNATURE: sign(self._secret, code, self._recipient, fields)} if self._secret else {}
            sent = self._send(code, {name: str(value) for name, value in fields.items()} | signature)
            return self._receive(sent)[1]

        return self._with_retries(call)

    def window_reports(self) -> WindowReports:
        """The broker's report on its windows, for operators."""
        return decode_body(bytes(self.call(Request.WINDOW_STATES)[1]), WindowReports)

    def repair_window(self, number: int) -> None:
        """Make the broker try a window again, as if it had never failed."""
        self.call(Request.REPAIR_WINDOW, _fields(WindowNumberHeader(number=number)))

    def skip_window(self, number: int) -> None:
        """Skip a window: its timers become dead letters."""
        self.call(Request.SKIP_WINDOW, _fields(WindowNumberHeader(number=number)))

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The first entry of a queue, and the first entry that is not flushed."""
        response = self.call(Request.GET_MIN_OFFSET, {"topic": topic, "queueId": str(queue_id)})[0]
        first = response.header(_OffsetField).offset
        empty = QueueRange(topic, queue_id, first, first)
        pulled = self.pull(empty, max_bytes=1)
        return pulled.min_offset, pulled.flushed_offset

    def pull(self, range_: QueueRange, max_bytes: int = PULL_BYTES) -> PulledRecords:
        """The first records of a range: at least one, unless the range is empty."""
        return self._pull(_pull_header(range_, range_.start, max_bytes))

    def pull_all(self, range_: QueueRange, max_bytes: int = PULL_BYTES) -> Iterator[bytearray]:
        """All records of a range in pieces.

        The broker reads the next piece while the caller works on the current one.
        """
        at = range_.start
        pending: int | None = None
        while at < range_.end:
            if pending is None:
                pulled = self._pull(_pull_header(range_, at, max_bytes))
            else:
                try:
                    pulled = _decode_pulled(*self._receive(pending))
                except LaterMQError as error:
                    pending = None
                    if not error.retriable:
                        raise
                    self.close()
                    continue
            if pulled.next_offset <= at or not pulled.records:
                raise CorruptStore(
                    f"{self.address} has no entry {at} in queue {range_.queue_id} of {range_.topic!r}: "
                    f"it has {pulled.min_offset} to {pulled.flushed_offset}",
                    hint="Entries were lost. Check whether the store was restored from an old backup",
                )
            at = pulled.next_offset
            pending = self._send_ahead(range_, at, max_bytes)
            yield pulled.records

    def call(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> tuple[Command, bytearray]:
        """The header and body of a successful response."""
        return self._with_retries(lambda: self._receive(self._send(code, fields or {}, body)))

    def _with_retries(self, request: Callable[[], _Result]) -> _Result:
        give_up_s = time.monotonic() + self._patience_s
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                return request()
            except LaterMQError as error:
                pause_s = backoff.next_pause()
                if not error.retriable or time.monotonic() + pause_s > give_up_s:
                    raise
            self.close()
            time.sleep(pause_s)

    def _send_ahead(self, range_: QueueRange, at: int, max_bytes: int) -> int | None:
        if at >= range_.end:
            return None
        with contextlib.suppress(ConnectionLost):  # the next pull retries
            return self._send(Request.PULL_RECORDS, _fields(_pull_header(range_, at, max_bytes)))
        return None

    def _pull(self, header: PullRecordsHeader) -> PulledRecords:
        return _decode_pulled(*self.call(Request.PULL_RECORDS, _fields(header)))

    def _send(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> int:
        opaque = next(self._opaques) & 0x7FFFFFFF
        try:
            if self._socket is None:
                self._socket = self._connect()
            if self._credentials is not None:
                fields = self._credentials.signed(fields, body, code)
            self._socket.sendall(encode_frame(code, opaque, fields=fields, body=body))
        except OSError as error:
            self.close()
            raise ConnectionLost(f"cannot reach {self.address}: {error.strerror or error}") from None
        return opaque

    def _connect(self) -> socket.socket:
        """Open the socket, with TLS and a user if the environment has them: workers of Spark have no other settings."""
        self._credentials = credentials_from_environment()
        tls = tls_from_environment()
        context = tls.context() if tls is not None else None
        host, port = split_address(self.address)
        connected = socket.create_connection((host, port), self._timeout_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return connected
        try:
            return context.wrap_socket(connected, server_hostname=host)
        except OSError as error:
            connected.close()
            raise ConnectFailed(
                f"cannot connect to {self.address}: {reason_of(error)}", hint=tls_hint(error, context)
            ) from None

    def _receive(self, opaque: int) -> tuple[Command, bytearray]:
        while True:
            try:
                command, body = self._read_frame()
            except TimeoutError:
                self.close()
                raise RequestTimedOut(f"{self.address} did not answer within {self._timeout_s:g} s") from None
            except OSError as error:
                self.close()
                raise ConnectionLost(f"the connection to {self.address} was lost: {error}") from None
            # Skip the server's own requests and notifications: the pipeline handles none of them.
            if command.is_response and command.opaque == opaque:
                break
        if command.code:
            raise self._failure(command)
        return command, body

    def _failure(self, command: Command) -> LaterMQError:
        user = self._credentials.user if self._credentials is not None else ""
        error = error_from_wire(command.code, command.remark, self.address, user)
        if isinstance(error, AccessRefused):
            error.hint = f"{error.hint}. {_RIGHTS if user else _EXECUTORS}"
        return error

    def _read_frame(self) -> tuple[Command, bytearray]:
        prefix = decode_prefix(self._read(PREFIX_BYTES))
        if prefix.body_bytes < 0 or prefix.length > MAX_FRAME_BYTES:
            self.close()
            raise MalformedFrame(
                f"{self.address} sent a frame of {prefix.length} bytes with a header of {prefix.header_bytes}"
            )
        header = bytes(self._read(prefix.header_bytes))
        return decode_frame(prefix.encoding, header, b""), self._read(prefix.body_bytes)

    def _read(self, size: int) -> bytearray:
        """Read exactly `size` bytes, straight into their final buffer, because a body has several megabytes."""
        if self._socket is None:
            raise ConnectionError("the connection is closed")
        data = bytearray(size)
        view = memoryview(data)
        while view:
            received = self._socket.recv_into(view)
            if not received:
                raise ConnectionError("the server closed the connection")
            view = view[received:]
        return data


def _pull_header(range_: QueueRange, at: int, max_bytes: int) -> PullRecordsHeader:
    return PullRecordsHeader(
        topic=range_.topic,
        queueId=range_.queue_id,
        offset=at,
        maxBytes=max_bytes,
        untilOffset=range_.end,
        epoch=range_.epoch,
    )


def _decode_pulled(command: Command, body: bytearray) -> PulledRecords:
    fields = command.header(_PulledFields)
    return PulledRecords(body, fields.nextOffset, fields.minOffset, fields.flushedOffset)


def _decode_state_body(body: bytearray) -> PipelineState:
    state = decode_state(bytes(body))
    if not is_file_name(state.store_id):  # it names folders that are written and removed
        raise CorruptStore(
            f"the broker reports an invalid store id: {state.store_id[:40]!r}", hint="Check the broker's address"
        )
    return state


def _fields(header: msgspec.Struct) -> dict[str, str]:
    return {name: str(value) for name, value in msgspec.structs.asdict(header).items() if value is not None}
