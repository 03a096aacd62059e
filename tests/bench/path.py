"""CPU time of sends and pulls in the broker without sockets, with frames like those of the Java client."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from latermq.broker.broker import Broker
from latermq.clock import SystemClock
from latermq.config import Config
from latermq.message.batch import BatchMember, encode_batch
from latermq.protocol.remoting.clients import ConsumerData, HeartbeatData, SubscriptionData
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import FrameReader, encode_frame
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.pull import PULL_SUSPEND
from latermq.protocol.remoting.request_decoder import decode_request
from latermq.protocol.remoting.send import SendRequest
from latermq.server.broker.composition import broker_service
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.listener import Listener
from latermq.server.remoting.sliced_requests import Later, call_now
from latermq.store.files.disk import FileDisk
from latermq.store.index.pending_keys import INDEX_BATCH

TOPIC = "bench-path"
GROUP = "bench-path-group"
QUEUES = 8
FRAMES_PER_READ = 64  # frames per read of a busy socket
PULL_BATCH = 32
BATCH_MESSAGES = 10_000  # the default limit of one request
_BATCHES = 5
_READ_BYTES = 65_536  # a batch takes several reads
_FAR_MS = 3_600_000  # no timer is due during the run
_WARM_PART = 10  # a tenth more, before the measurement, is warm-up

Figures = dict[str, float]


class StubTransport(asyncio.Transport):
    """Counts the bytes of replies."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 40_000)})
        self.written_bytes = 0
        self.last = b""

    def write(self, data: Any) -> None:
        self.written_bytes += len(data)
        self.last = data

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def _properties(number: int, due: str) -> str:
    return f"UNIQ_KEY\x017F0000011C0F2A139A5500{number:010X}\x02WAIT\x01true\x02{due}"


def _fields(number: int, properties: str, batch: str = "false") -> dict[str, str]:
    return {
        "a": "bench_producer", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(number % QUEUES),
        "f": "0", "g": "1800000000000", "h": "0", "i": properties, "j": "0", "k": "false", "m": batch,
        "n": "broker-a",
    }  # fmt: skip


class SocketlessBroker:
    """A broker on a store in a folder, with one connection without a socket."""

    def __init__(
        self, folder: Path, body_bytes: int, later: Later = call_now, transport: StubTransport | None = None
    ) -> None:
        config, clock = Config(), SystemClock()
        self.broker = Broker(
            config, FileDisk(folder), clock, host="127.0.0.1", port=10911, new_store_id="b" * 32,
            random_fraction=Random(1).random,
        )  # fmt: skip
        self.service = service = broker_service(self.broker, later=later)
        self.transport = transport or StubTransport()
        self.connection = Connection(service, Listener(service, config.server, clock))
        self.connection.connection_made(self.transport)
        self._body = b"x" * body_bytes
        self._number = 0
        self._due_ms = clock.now_ms() + _FAR_MS

    def send_frames(self, count: int, *, with_timers: bool = False) -> bytes:
        """The sends of one read, to all queues in turn, each with its own unique key."""
        frames = []
        due = f"TIMER_DELIVER_MS\x01{self._due_ms}\x02" if with_timers else ""
        first = self._number + 1
        self._number += count
        for number in range(first, first + count):
            fields = _fields(number, _properties(number, due))
            frames.append(encode_frame(Request.SEND_MESSAGE_V2, number, fields=fields, body=self._body))
        return b"".join(frames)

    def batch_frame(self, *, with_timers: bool) -> bytes:
        """One request with many messages."""
        due = f"TIMER_DELIVER_MS\x01{self._due_ms}\x02" if with_timers else ""
        first = self._number + 1
        self._number += BATCH_MESSAGES
        body = encode_batch(
            BatchMember(0, self._body, _properties(number, due).encode())
            for number in range(first, first + BATCH_MESSAGES)
        )
        return encode_frame(Request.SEND_BATCH_MESSAGE, first, fields=_fields(first, "", batch="true"), body=body)

    def subscribe(self) -> None:
        """Register the group's subscription with a consumer's heartbeat."""
        subscription = SubscriptionData(topic=TOPIC, subString="*", expressionType="TAG")
        heartbeat = HeartbeatData(
            clientID="bench", consumerDataSet=[ConsumerData(groupName=GROUP, subscriptionDataSet=[subscription])]
        )
        self.connection.data_received(encode_frame(Request.HEART_BEAT, 1, fields={}, body=encode_body(heartbeat)))

    def pull_frame(self, queue_id: int, offset: int) -> bytes:
        fields = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id), "queueOffset": str(offset),
            "maxMsgNums": str(PULL_BATCH), "sysFlag": str(PULL_SUSPEND), "commitOffset": "0",
            "suspendTimeoutMillis": "15000", "subVersion": "0", "expressionType": "TAG", "bname": "broker-a",
        }  # fmt: skip
        return encode_frame(Request.PULL_MESSAGE, offset, fields=fields)

    def upkeep(self) -> None:
        """Work of background threads in a real broker, which is not measured."""
        self.broker.store.log.prepare_ahead()

    def close(self) -> None:
        self.broker.close()


def _reads(path: SocketlessBroker, count: int, *, with_timers: bool = False) -> Iterator[tuple[bytes, int, bool]]:
    """(frames, their number, whether to measure them) for `count` messages after a tenth more as warm-up."""
    for part, measured in ((-(-count // _WARM_PART), False), (count, True)):
        for start in range(0, part, FRAMES_PER_READ):
            size = min(FRAMES_PER_READ, part - start)
            path.upkeep()
            yield path.send_frames(size, with_timers=with_timers), size, measured


def measure_send(path: SocketlessBroker, count: int, *, with_timers: bool = False) -> float:
    """Microseconds of a complete send through the connection."""
    spent_ns = 0
    receive = path.connection.data_received
    for frames, _size, measured in _reads(path, count, with_timers=with_timers):
        started_ns = time.thread_time_ns()
        receive(frames)
        if measured:
            spent_ns += time.thread_time_ns() - started_ns
    started_ns = time.thread_time_ns()
    path.broker.store.pending_keys.put()
    spent_ns += time.thread_time_ns() - started_ns
    return spent_ns / 1000 / count


def measure_send_stages(path: SocketlessBroker, count: int) -> Figures:
    """The same work by stage. The sum does not include the work of the connection itself."""
    broker, reader, lane = path.broker, FrameReader(decode=decode_request), path.connection.lanes.get(SendRequest)
    assert lane is not None
    decode_ns = lane_ns = index_ns = 0
    for frames, size, measured in _reads(path, count):
        start_ns = time.thread_time_ns()
        commands = reader.feed(frames)
        decoded_ns = time.thread_time_ns()
        replies: list[bytes] = []
        taken = lane.serve_runs(path.connection, commands, 0, replies)
        path.transport.write(b"".join(replies))
        broker.waiting.wake()
        replied_ns = time.thread_time_ns()
        assert taken == size, "the lane did not accept a plain send"
        if broker.store.statistics()["unindexed"] + 2 * size > INDEX_BATCH:
            broker.store.pending_keys.put()
        if measured:
            decode_ns += decoded_ns - start_ns
            lane_ns += replied_ns - decoded_ns
            index_ns += time.thread_time_ns() - replied_ns
    return {
        "frame and header (µs/message)": decode_ns / 1000 / count,
        "admission, append and reply (µs/message)": lane_ns / 1000 / count,
        "key index (µs/message)": index_ns / 1000 / count,
    }


def measure_pull(path: SocketlessBroker) -> Figures:
    """Pulls of 32 messages over all stored messages, each through the connection."""
    path.subscribe()
    spent_ns = pulls = 0
    receive = path.connection.data_received
    for queue_id in range(QUEUES):
        queue = path.broker.store.queues.find(TOPIC, queue_id)
        for offset in range(0, queue.next_offset - PULL_BATCH + 1 if queue else 0, PULL_BATCH):
            frame = path.pull_frame(queue_id, offset)
            started_ns = time.thread_time_ns()
            receive(frame)
            spent_ns += time.thread_time_ns() - started_ns
            pulls += 1
    assert pulls, f"nothing to pull: store at least {PULL_BATCH * QUEUES} messages"
    return {
        f"pull of {PULL_BATCH} (µs/pull)": spent_ns / 1000 / pulls,
        "pull (µs/message)": spent_ns / 1000 / pulls / PULL_BATCH,
    }


def measure_batch(path: SocketlessBroker, *, with_timers: bool = False) -> float:
    """Milliseconds for which a request with many messages blocks the thread after its last bytes arrive."""
    spent_ns = []
    for _ in range(_BATCHES):
        path.upkeep()
        path.broker.store.pending_keys.put()
        frame = path.batch_frame(with_timers=with_timers)
        last_at = (len(frame) - 1) // _READ_BYTES * _READ_BYTES
        for at in range(0, last_at, _READ_BYTES):
            path.connection.data_received(frame[at : at + _READ_BYTES])
        started_ns = time.thread_time_ns()
        path.connection.data_received(frame[last_at:])
        spent_ns.append(time.thread_time_ns() - started_ns)
    return median(spent_ns) / 1e6


def measure_path(folder: Path, count: int, body_bytes: int) -> Figures:
    """All figures of one repeat, on a new store."""
    path = SocketlessBroker(folder, body_bytes)
    try:
        return {
            "send, whole (µs/message)": measure_send(path, count),
            **measure_send_stages(path, count),
            **measure_pull(path),
            "send of a timer, whole (µs/message)": measure_send(path, count, with_timers=True),
            f"batch of {BATCH_MESSAGES:,} (ms)": measure_batch(path),
            f"batch of {BATCH_MESSAGES:,} timers (ms)": measure_batch(path, with_timers=True),
        }
    finally:
        path.close()
