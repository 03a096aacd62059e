"""Requests that wait in files until every row of a job was found good: written by tasks, sent by the driver.

A frame may give other rows each time it is read, so what was checked is kept, and what is kept is sent.
"""

import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec
import numpy as np

from latermq.errors import CorruptStore
from latermq.pipeline.bulk.job_keys import JobKeys, Keys, Repeated, find_repeated, keys_of
from latermq.pipeline.bulk.row_frames import Request, taken_rows
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.root import Root, file_errors
from latermq.protocol.remoting.codes import Request as RequestCode
from latermq.protocol.remoting.rows import decode_rows, encode_rows

_LENGTHS = struct.Struct("<II")  # bytes of the body, rows in it
# The broker takes one batch while the next is on its way; more would only make others wait.
LINKS_PER_BROKER = 2
PATIENCE_S = 60.0
# A run that is killed has remembered all but what it sent in the last such span; that, the brokers know.
REMEMBER_EVERY_S = 1.0
HELD_BYTES = 64 << 20  # of these, by each connection


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
    """What became of the rows of a job: timers now, known already from an earlier run, or left out for another one."""

    scheduled: int = 0
    known: int = 0
    repeated: int = 0  # whose key another row of the same run has
    repeated_keys: tuple[str, ...] = ()  # some of these keys


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


def look_for_repeated(root: Root, files: Sequence[SpoolFile]) -> Repeated:
    """Which rows of these files have the key of another one."""
    return find_repeated(*((body for body, _ in read_spool(root, files)) for _ in range(2)))


def send_spool(
    root: Root,
    files: Sequence[SpoolFile],
    addresses: dict[str, str],
    job: str,
    on_sent: Callable[[int], None] = lambda rows: None,
) -> Scheduled:
    """Schedule all rows of these files that the job has not scheduled before, and remember them.

    `on_sent` is told how many more rows are done, one call at a time.
    """
    repeated = look_for_repeated(root, files)
    keys = JobKeys(root, job)
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
    keys.tidy()
    known = sum(file.rows for file in files) - scheduled - repeated.rows
    return Scheduled(scheduled, known, repeated.rows, repeated.sample)


@dataclass
class _Taken:
    """A request that the broker has answered, and that is not remembered yet."""

    body: bytes
    keys: Keys
    scheduled: int


@dataclass
class _Sender:
    """One connection's share: whatever is next of its broker's requests."""

    address: str
    job: str
    bodies: Iterator[tuple[bytes, int]]
    keys: JobKeys
    lock: threading.Lock
    stopped: threading.Event
    on_sent: Callable[[int], None]
    _taken: list[_Taken] = field(default_factory=list)
    _instance: str = ""  # of the broker's process; empty where it is of an earlier release
    _scheduled: int = 0

    def run(self) -> int:
        """How many rows became timers."""
        remember_at_s = time.monotonic() + REMEMBER_EVERY_S
        with BrokerLink(self.address, patience_s=PATIENCE_S) as link:
            self._instance = link.state().instance
            while not self.stopped.is_set():
                with self.lock:
                    found = next(self.bodies, None)
                if found is None:
                    break
                body, rows = found
                left, keys = self._not_known(body)
                if left:
                    self._taken.append(_Taken(left, keys, self._send(link, left)))
                with self.lock:
                    self.on_sent(rows)
                held_bytes = sum(len(one.body) for one in self._taken)
                if time.monotonic() >= remember_at_s or held_bytes >= HELD_BYTES:
                    self._remember(link)
                    remember_at_s = time.monotonic() + REMEMBER_EVERY_S
            self._remember(link)
        return self._scheduled

    def _send(self, link: BrokerLink, body: bytes) -> int:
        reply, _ = link.call(RequestCode.SCHEDULE_ROWS, {"job": self.job}, body)
        return reply.header(_ScheduledFields).scheduled

    def _not_known(self, body: bytes) -> tuple[bytes, Keys]:
        """What is left of a request without the rows that earlier runs have scheduled, and the keys of these rows."""
        batch = decode_rows(body)
        keys = keys_of(batch)
        known = self.keys.known(keys)
        if not known.any():
            return body, keys
        left = np.flatnonzero(~known)
        return encode_rows(taken_rows(batch, left)) if len(left) else b"", keys[left]

    def _remember(self, link: BrokerLink) -> None:
        """Not before the broker has them on disk: what it loses in a power cut must be scheduled by the next run.

        If another process answers than the one that took them, they may be lost already. It gets them once more, and
        knows those that it has.
        """
        if not self._taken:
            return
        while (instance := link.state(flush=True).instance) != self._instance:
            self._instance = instance
            for one in self._taken:
                one.scheduled = max(one.scheduled, self._send(link, one.body))
        self.keys.add([one.keys for one in self._taken])
        self._scheduled += sum(one.scheduled for one in self._taken)
        self._taken.clear()
