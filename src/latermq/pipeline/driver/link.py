"""What the pipeline asks of one broker, over a plain blocking connection that Spark can carry to its workers."""

import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from latermq.client.session.connection import split_address
from latermq.client.session.failures import ConnectionLost, RequestTimedOut, errors_from_wire
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

PULL_BYTES = 1 << 20  # more at once keeps the broker from its deliveries for too long
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0

_Answer = TypeVar("_Answer")


class _PulledFields(msgspec.Struct, kw_only=True):
    """Header fields of the answer to PULL_RECORDS."""

    nextOffset: int
    minOffset: int
    flushedOffset: int


class _OffsetField(msgspec.Struct):
    """Header field of the answer to GET_MIN_OFFSET."""

    offset: int


class Pulled(NamedTuple):
    """Whole records end to end, and where their queue goes on, begins and ends."""

    records: bytearray
    next_offset: int
    min_offset: int
    flushed_offset: int


@dataclass(frozen=True)
class QueueRange:
    """Entries [start, end) of one queue of one broker. `epoch` is that of the driver that ingests, if one asks."""

    topic: str
    queue_id: int
    start: int
    end: int
    epoch: int | None = None


class BrokerLink:
    """A connection to one server, opened when it is first used, and again after it was lost.

    Every request of the pipeline may be repeated, so what fails in passing, as while a broker is restarted, is tried
    again until `patience_s` have gone by.
    """

    def __init__(self, address: str, *, timeout_s: float = 30.0, patience_s: float = 20.0, secret: bytes = b"") -> None:
        """`secret` makes it the driver's: `begin`, `commit_ingest` and `window_ready` are signed with it."""
        split_address(address)
        self._secret = secret
        self._recipient: Recipient | None = None  # who answers on this connection
        self.address = address
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._socket: socket.socket | None = None
        self._opaques = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """The settings: whoever gets it connects anew, and is no driver."""
        return {"address": self.address, "timeout_s": self._timeout_s, "patience_s": self._patience_s}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._recipient = None

    def state(self, *, flush: bool = False) -> PipelineState:
        """What the broker says of its timers and windows; with `flush` once all that it acknowledged is flushed."""
        return self._patiently(lambda: self._ask_state({"flush": "true"} if flush else {}))

    def _ask_state(self, fields: Mapping[str, str]) -> PipelineState:
        state = _state(self._receive(self._send(Request.PIPELINE_STATE, fields))[1])
        self._recipient = Recipient(state.store_id, state.instance)
        return state

    def begin(self, token: str, table_end: int) -> PipelineState:
        """Become the driver that ingests: the answer's epoch is its own, and older ones are refused from now on.

        `token` is the one that was left in the folder, `table_end` the first entry that the table lacks. A broker that
        does not find the one, or has let go of what the other says is missing, gives no epoch.
        """
        header = BeginPipelineHeader(token=token, tableEnd=table_end, afterEpoch=self.state().epoch)
        return _state(self._call_signed(Request.BEGIN_PIPELINE, header))

    def commit_ingest(self, offset: int, epoch: int) -> None:
        """Tell that all entries below `offset` are in the timeline."""
        self._call_signed(Request.COMMIT_INGEST, CommitIngestHeader(offset=offset, epoch=epoch))

    def window_ready(self, number: int, attempt: str, epoch: int) -> None:
        """Tell that an attempt of a window can be played."""
        self._call_signed(Request.WINDOW_READY, WindowReadyHeader(number=number, attempt=attempt, epoch=epoch))

    def _call_signed(self, code: int, header: msgspec.Struct) -> bytearray:
        """The body of the answer. It is signed for the process that answers, so again when a connection was lost."""
        fields = signed_fields(header)

        def call() -> bytearray:
            if self._recipient is None:
                self._ask_state({})
            assert self._recipient is not None
            signature = {SIGNATURE: sign(self._secret, code, self._recipient, fields)} if self._secret else {}
            sent = self._send(code, {name: str(value) for name, value in fields.items()} | signature)
            return self._receive(sent)[1]

        return self._patiently(call)

    def window_reports(self) -> WindowReports:
        """What the broker says of its windows to an operator."""
        return decode_body(bytes(self.call(Request.WINDOW_STATES)[1]), WindowReports)

    def repair_window(self, number: int) -> None:
        """Have a window looked at as if nothing had ever failed."""
        self.call(Request.REPAIR_WINDOW, _fields(WindowNumberHeader(number=number)))

    def skip_window(self, number: int) -> None:
        """Give a window up: its timers become dead letters."""
        self.call(Request.SKIP_WINDOW, _fields(WindowNumberHeader(number=number)))

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The first entry of a queue and the first that is not flushed."""
        told = self.call(Request.GET_MIN_OFFSET, {"topic": topic, "queueId": str(queue_id)})[0]
        first = told.header(_OffsetField).offset
        nothing = QueueRange(topic, queue_id, first, first)
        pulled = self.pull(nothing, max_bytes=1)
        return pulled.min_offset, pulled.flushed_offset

    def pull(self, range_: QueueRange, max_bytes: int = PULL_BYTES) -> Pulled:
        """The first records of a range, at least one of them if there is any."""
        return self._pull(_pull_header(range_, range_.start, max_bytes))

    def pull_all(self, range_: QueueRange, max_bytes: int = PULL_BYTES) -> Iterator[bytearray]:
        """All records of a range in pieces; the broker reads the next one while the caller works on the last."""
        at = range_.start
        asked: int | None = None
        while at < range_.end:
            if asked is None:
                pulled = self._pull(_pull_header(range_, at, max_bytes))
            else:
                try:
                    pulled = _pulled(*self._receive(asked))
                except LaterMQError as error:
                    asked = None
                    if not error.retriable:
                        raise
                    self.close()
                    continue
            if pulled.next_offset <= at or not pulled.records:
                raise CorruptStore(
                    f"{self.address} has no entry {at} in queue {range_.queue_id} of {range_.topic!r}: "
                    f"it holds {pulled.min_offset} to {pulled.flushed_offset}",
                    hint="Entries that were there are gone: look whether an old copy of the store was put back",
                )
            at = pulled.next_offset
            asked = self._ask_ahead(range_, at, max_bytes)
            yield pulled.records

    def call(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> tuple[Command, bytearray]:
        """The successful answer to a request and its body."""
        return self._patiently(lambda: self._receive(self._send(code, fields or {}, body)))

    def _patiently(self, ask: Callable[[], _Answer]) -> _Answer:
        give_up_s = time.monotonic() + self._patience_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return ask()
            except LaterMQError as error:
                if not error.retriable or time.monotonic() + pause_s > give_up_s:
                    raise
            self.close()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _ask_ahead(self, range_: QueueRange, at: int, max_bytes: int) -> int | None:
        if at >= range_.end:
            return None
        with contextlib.suppress(ConnectionLost):  # asked again in its turn
            return self._send(Request.PULL_RECORDS, _fields(_pull_header(range_, at, max_bytes)))
        return None

    def _pull(self, header: PullRecordsHeader) -> Pulled:
        return _pulled(*self.call(Request.PULL_RECORDS, _fields(header)))

    def _send(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> int:
        opaque = next(self._opaques) & 0x7FFFFFFF
        try:
            if self._socket is None:
                self._socket = socket.create_connection(split_address(self.address), self._timeout_s)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(encode_frame(code, opaque, fields=fields, body=body))
        except OSError as error:
            self.close()
            raise ConnectionLost(f"cannot reach {self.address}: {error.strerror or error}") from None
        return opaque

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
            # A server may ask and notify too; the pipeline has nothing to say to that.
            if command.is_response and command.opaque == opaque:
                break
        if command.code:
            raise errors_from_wire(command.code, command.remark, self.address)
        return command, body

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
        """So many bytes, received where they stay: a body is some megabytes."""
        if self._socket is None:
            raise ConnectionError("it is closed")
        data = bytearray(size)
        view = memoryview(data)
        while view:
            received = self._socket.recv_into(view)
            if not received:
                raise ConnectionError("the server closed it")
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


def _pulled(command: Command, body: bytearray) -> Pulled:
    fields = command.header(_PulledFields)
    return Pulled(body, fields.nextOffset, fields.minOffset, fields.flushedOffset)


def _state(body: bytearray) -> PipelineState:
    state = decode_state(bytes(body))
    if not is_file_name(state.store_id):  # folders are called so, which are written to and removed
        raise CorruptStore(f"{state.store_id[:40]!r} is no store id", hint="Look at which broker says so")
    return state


def _fields(header: msgspec.Struct) -> dict[str, str]:
    return {name: str(value) for name, value in msgspec.structs.asdict(header).items() if value is not None}
