"""Requests that wait in files until every row of a job was found good: written by tasks, sent by the driver.

A frame may give other rows each time it is read, so what was checked is kept, and what is kept is sent.
"""

import secrets
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec

from latermq.errors import CorruptStore
from latermq.pipeline.link import BrokerLink
from latermq.pipeline.root import Root, file_errors
from latermq.pipeline.row_frames import Request
from latermq.protocol.remoting.codes import Request as RequestCode

_LENGTHS = struct.Struct("<II")  # bytes of the body, rows in it
# The broker takes one batch while the next is on its way; more would only make others wait.
LINKS_PER_BROKER = 2
PATIENCE_S = 60.0


@dataclass(frozen=True)
class SpoolFile:
    """The requests of one task for one broker."""

    broker: str
    path: str
    rows: int
    size_bytes: int
    topics: tuple[str, ...]


@dataclass(frozen=True)
class Scheduled:
    """What became of the rows of a job: timers now, or known already from an earlier run."""

    scheduled: int = 0
    known: int = 0

    def __add__(self, other: "Scheduled") -> "Scheduled":
        return Scheduled(self.scheduled + other.scheduled, self.known + other.known)


class _ScheduledFields(msgspec.Struct):
    """Header fields of the answer to SCHEDULE_ROWS."""

    scheduled: int
    known: int


def write_spool(root: Root, folder: str, requests: Iterable[Request]) -> list[SpoolFile]:
    """Write requests, a file for each broker. A task that is tried again writes files of its own."""
    mark = secrets.token_hex(8)
    rows: dict[str, int] = {}
    sizes: dict[str, int] = {}
    topics: dict[str, dict[str, None]] = {}
    paths: dict[str, str] = {}
    with ExitStack() as stack, file_errors(f"the rows of a job in {folder}"):
        streams = {}
        for request in requests:
            broker = request.broker
            if broker not in streams:
                paths[broker] = f"{folder}/{mark}-{len(paths)}.rows"
                root.files.create_dir(folder)
                streams[broker] = stack.enter_context(root.files.open_output_stream(paths[broker]))
            streams[broker].write(_LENGTHS.pack(len(request.body), request.rows))
            streams[broker].write(request.body)
            rows[broker] = rows.get(broker, 0) + request.rows
            sizes[broker] = sizes.get(broker, 0) + _LENGTHS.size + len(request.body)
            topics.setdefault(broker, {}).update(dict.fromkeys(request.topics))
    return [
        SpoolFile(broker, path, rows[broker], sizes[broker], tuple(topics[broker])) for broker, path in paths.items()
    ]


def read_spool(root: Root, files: Iterable[SpoolFile]) -> Iterator[tuple[bytes, int]]:
    """The bodies of requests and how many rows each has."""
    for file in files:
        left = file.size_bytes
        with file_errors(file.path), root.files.open_input_stream(file.path) as stream:
            while left > 0:
                head = stream.read(_LENGTHS.size)
                if len(head) < _LENGTHS.size:
                    raise _cut_short(file)
                size_bytes, rows = _LENGTHS.unpack(head)
                body = stream.read(size_bytes)
                if len(body) < size_bytes:
                    raise _cut_short(file)
                left -= _LENGTHS.size + size_bytes
                yield body, rows


def _cut_short(file: SpoolFile) -> CorruptStore:
    return CorruptStore(f"{file.path} ends early", hint="Run the job again; what was scheduled is not scheduled twice")


def send_spool(
    root: Root,
    files: Sequence[SpoolFile],
    addresses: dict[str, str],
    job: str,
    on_sent: Callable[[int], None] = lambda rows: None,
) -> Scheduled:
    """Schedule all rows of these files; `on_sent` is told how many more were, one call at a time."""
    lock = threading.Lock()
    stopped = threading.Event()
    with ThreadPoolExecutor(LINKS_PER_BROKER * max(1, len(addresses))) as pool:
        senders: list[Future[Scheduled]] = []
        for broker in sorted({file.broker for file in files}):
            bodies = read_spool(root, [file for file in files if file.broker == broker])
            for _ in range(LINKS_PER_BROKER):
                sender = _Sender(addresses[broker], job, bodies, lock, stopped, on_sent)
                senders.append(pool.submit(sender.run))
        wait(senders, return_when=FIRST_EXCEPTION)
        stopped.set()
    return sum((sender.result() for sender in senders), Scheduled())


@dataclass
class _Sender:
    """One connection's share: whatever is next of its broker's requests."""

    address: str
    job: str
    bodies: Iterator[tuple[bytes, int]]
    lock: threading.Lock
    stopped: threading.Event
    on_sent: Callable[[int], None]

    def run(self) -> Scheduled:
        total = Scheduled()
        with BrokerLink(self.address, patience_s=PATIENCE_S) as link:
            while not self.stopped.is_set():
                with self.lock:
                    found = next(self.bodies, None)
                if found is None:
                    break
                body, rows = found
                reply, _ = link.call(RequestCode.SCHEDULE_ROWS, {"job": self.job}, body)
                fields = reply.header(_ScheduledFields)
                total += Scheduled(fields.scheduled, fields.known)
                with self.lock:
                    self.on_sent(rows)
        return total
