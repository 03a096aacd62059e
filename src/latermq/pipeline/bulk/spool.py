"""Spool files of requests, held until every row of a job is valid: written by tasks, sent by the driver.

A frame may yield other rows each time it is read. The checked rows are therefore spooled, and the spooled rows are
sent.
"""

import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np

from latermq.errors import CorruptStore
from latermq.model.rows import RowReceiver
from latermq.pipeline.bulk.job_keys import JobKeys, Keys, Repeated, find_repeated, keys_of
from latermq.pipeline.bulk.row_frames import Request, select_rows
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.root import Root, file_errors
from latermq.protocol.remoting.codes import Request as RequestCode
from latermq.protocol.remoting.rows import decode_receiver, decode_rows, encode_rows, no_rows

_LENGTHS = struct.Struct("<II")  # bytes of the body, rows in it
# The broker processes one batch while the next is in transit. More connections would only delay other clients.
LINKS_PER_BROKER = 2
PATIENCE_S = 60.0
# A killed run has remembered everything except what it sent in the last interval of this length. The brokers know those
# rows.
SAVE_EVERY_S = 1.0
HELD_BYTES = 64 << 20  # of sent but not yet remembered requests, per connection


class SpoolFile(NamedTuple):
    """The requests of one task for one broker, all of them or those of one share."""

    broker: str
    path: str
    rows: int
    size_bytes: int
    topics: tuple[str, ...]
    share: int = 0


class Scheduled(NamedTuple):
    """The outcome of a job's rows: new timers, rows known from an earlier run, and rows with a repeated key."""

    scheduled: int = 0
    known: int = 0
    repeated: int = 0  # rows whose key another row of the same run has
    repeated_keys: tuple[str, ...] = ()  # some of these keys


class _ScheduledFields(msgspec.Struct):
    """Header fields of the SCHEDULE_ROWS response."""

    scheduled: int
    known: int


def write_spool(root: Root, folder: str, requests: Iterable[Request]) -> list[SpoolFile]:
    """Write requests to one file per broker and share. A retried task writes new files."""
    mark = secrets.token_hex(8)
    places: dict[tuple[str, int], _Written] = {}
    with ExitStack() as stack, file_errors(f"spooling rows in {folder}"):
        for request in requests:
            place = (request.broker, request.share)
            if place not in places:
                path = f"{folder}/{mark}-{len(places)}.rows"
                root.files.create_dir(folder)
                places[place] = _Written(path, stack.enter_context(root.files.open_output_stream(path)))
            places[place].add(request)
    return [
        SpoolFile(broker, done.path, done.rows, done.size_bytes, tuple(done.topics), share)
        for (broker, share), done in places.items()
    ]


@dataclass
class _Written:
    """A spool file while it is written."""

    path: str
    stream: Any
    rows: int = 0
    size_bytes: int = 0
    topics: dict[str, None] = field(default_factory=dict)

    def add(self, request: Request) -> None:
        self.stream.write(_LENGTHS.pack(len(request.body), request.rows))
        self.stream.write(request.body)
        self.rows += request.rows
        self.size_bytes += _LENGTHS.size + len(request.body)
        self.topics.update(dict.fromkeys(request.topics))


def read_spool(root: Root, files: Iterable[SpoolFile]) -> Iterator[tuple[bytes, int]]:
    """The bodies of requests, and the number of rows in each."""
    for file in files:
        left = file.size_bytes
        with file_errors(file.path), root.files.open_input_stream(file.path) as stream:
            while left > 0:
                head = stream.read(_LENGTHS.size)
                if len(head) < _LENGTHS.size:
                    raise _truncated(file)
                size_bytes, rows = _LENGTHS.unpack(head)
                body = stream.read(size_bytes)
                if len(body) < size_bytes:
                    raise _truncated(file)
                left -= _LENGTHS.size + size_bytes
                yield body, rows


def _truncated(file: SpoolFile) -> CorruptStore:
    return CorruptStore(f"{file.path} is truncated", hint="Run the job again; no row is scheduled twice")


def count_repeated(root: Root, files: Sequence[SpoolFile]) -> Repeated:
    """The rows of these files whose key another row has."""
    return find_repeated(*((body for body, _ in read_spool(root, files)) for _ in range(2)))


def send_spool(
    root: Root,
    files: Sequence[SpoolFile],
    addresses: dict[str, str],
    keys: JobKeys,
    job: str,
    on_sent: Callable[[int], None] = lambda rows: None,
) -> Scheduled:
    """Schedule all rows of these files that the job has not scheduled before, and remember them.

    `on_sent` receives the number of further rows done, in calls that do not overlap.
    """
    repeated = count_repeated(root, files)
    lock = threading.Lock()
    stopped = threading.Event()
    with ThreadPoolExecutor(LINKS_PER_BROKER * max(1, len(addresses))) as pool:
        senders: list[Future[int]] = []
        for broker in sorted({file.broker for file in files}):
            bodies = read_spool(root, [file for file in files if file.broker == broker])
            for _ in range(LINKS_PER_BROKER):
                sender = _Sender(addresses[broker], job, bodies, keys, lock, stopped, on_sent)
                senders.append(pool.submit(sender.run))
        wait(senders, return_when=FIRST_EXCEPTION)
        stopped.set()
    scheduled = sum(sender.result() for sender in senders)
    keys.merge_files()
    known = sum(file.rows for file in files) - scheduled - repeated.rows
    return Scheduled(scheduled, known, repeated.rows, repeated.sample)


def ask_receiver(link: BrokerLink, job: str, topics: Sequence[str] = ()) -> RowReceiver:
    """Ask a broker for its limits. With topics, it flushes first, and refuses who may not send to them."""
    reply, _ = link.call(RequestCode.SCHEDULE_ROWS, {"job": job}, encode_rows(no_rows(topics)))
    return decode_receiver(reply)


@dataclass
class _SentRequest:
    """A request that the broker has answered and the job has not remembered yet."""

    body: bytes
    keys: Keys
    scheduled: int


@dataclass
class _Sender:
    """The work of one connection: sends the next of its broker's requests until none is left."""

    address: str
    job: str
    bodies: Iterator[tuple[bytes, int]]
    keys: JobKeys
    lock: threading.Lock
    stopped: threading.Event
    on_sent: Callable[[int], None]
    _sent: list[_SentRequest] = field(default_factory=list)
    _instance: str = ""  # of the broker's process
    _scheduled: int = 0

    def run(self) -> int:
        """Send requests, and return the number of rows that became timers."""
        save_at_s = time.monotonic() + SAVE_EVERY_S
        with BrokerLink(self.address, patience_s=PATIENCE_S) as link:
            self._instance = ask_receiver(link, self.job).instance
            while not self.stopped.is_set():
                with self.lock:
                    found = next(self.bodies, None)
                if found is None:
                    break
                body, rows = found
                left, keys = self._without_known(body)
                if left:
                    self._sent.append(_SentRequest(left, keys, self._send(link, left)))
                with self.lock:
                    self.on_sent(rows)
                held_bytes = sum(len(one.body) for one in self._sent)
                if time.monotonic() >= save_at_s or held_bytes >= HELD_BYTES:
                    self._save_keys(link)
                    save_at_s = time.monotonic() + SAVE_EVERY_S
            self._save_keys(link)
        return self._scheduled

    def _send(self, link: BrokerLink, body: bytes) -> int:
        reply, _ = link.call(RequestCode.SCHEDULE_ROWS, {"job": self.job}, body)
        return reply.header(_ScheduledFields).scheduled

    def _without_known(self, body: bytes) -> tuple[bytes, Keys]:
        """A request without the rows that earlier runs have scheduled, and the keys of the remaining rows."""
        batch = decode_rows(body)
        keys = keys_of(batch)
        known = self.keys.known(keys)
        if not known.any():
            return body, keys
        left = np.flatnonzero(~known)
        return encode_rows(select_rows(batch, left)) if len(left) else b"", keys[left]

    def _save_keys(self, link: BrokerLink) -> None:
        """Remember the sent rows, once the broker has them on disk.

        The next run must send again what the broker loses in a power cut. If another broker process answers than the
        one that accepted the rows, they may already be lost. It gets them again, and recognises those that it has.
        """
        if not self._sent:
            return
        topics = decode_rows(self._sent[0].body).topics[:1]  # any one; then the broker flushes
        while (instance := ask_receiver(link, self.job, topics).instance) != self._instance:
            self._instance = instance
            for one in self._sent:
                one.scheduled = max(one.scheduled, self._send(link, one.body))
        self.keys.add([one.keys for one in self._sent])
        self._scheduled += sum(one.scheduled for one in self._sent)
        self._sent.clear()
