"""A hundred thousand requests that no client sends, over every code and field, and afterwards all is as it was."""

import hashlib
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from latermq.client import MessageQueue, OutgoingMessage, blocking
from latermq.protocol.remoting.codes import Response
from latermq.protocol.remoting.frames import Command, FrameReader, encode_frame
from tests.interop.waiting import wait_until
from tests.security.attacker import resident_bytes
from tests.security.fuzzing import Fuzzer
from tests.security.shapes import broker_shapes, name_server_shapes
from tests.support.needs import LONG
from tests.support.serving import Server, serving

REQUESTS = 1_000_000 if LONG else 100_000
NAME_SERVER_SHARE = 0.2
BATCH = 100
PATIENCE_S = 60.0
# What the store keeps in memory of the messages and topics that came is in it, with room for the allocator.
MAX_SWELL_BYTES = 300 << 20
LAST_OPAQUE = 77
UNKNOWN_CODE = 32_001  # answered at once, after all that came before it

TOPIC, GROUP, QUEUES = "true-topic", "true-group", 4
NOW, TIMERS, LEVELS, FAR = 40, 30, 10, 5


class Stranger:
    """A connection that sends batches of requests and reads what comes meanwhile, so that neither side waits."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sock: socket.socket | None = None
        self._reader = FrameReader()
        self.cut_off = 0
        self.answers: dict[int, int] = {}
        self.internal: list[str] = []

    def exchange(self, frames: list[bytes], *, broken: bytes = b"") -> None:
        """Send them and wait until the last is answered, or the server has closed the connection."""
        if self._sock is None:
            self._sock = socket.create_connection(("127.0.0.1", self._port))
            self._sock.setblocking(False)
            self._reader = FrameReader()
        data = memoryview(b"".join([*frames, encode_frame(UNKNOWN_CODE, LAST_OPAQUE)]))
        give_up_s = time.monotonic() + PATIENCE_S
        try:
            while data or not self._read():
                assert time.monotonic() < give_up_s, f"no answer within {PATIENCE_S:g} s after these:\n{frames!r}"
                readable, writable, _ = select.select([self._sock], [self._sock] if data else [], [], 1.0)
                if writable:
                    data = data[self._sock.send(data) :]
                elif readable and data:
                    self._read()
            if broken:
                self._sock.send(broken)
                self.close()
        except (ConnectionError, BrokenPipeError):
            self.cut_off += 1
            self.close()

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _read(self) -> bool:
        """Take what has come; whether the last answer is among it."""
        assert self._sock is not None
        try:
            data = self._sock.recv(1 << 18)
        except BlockingIOError:
            return False
        if not data:
            raise ConnectionResetError
        commands = self._reader.feed(data)
        for command in commands:
            self._look_at(command)
        return any(command.is_response and command.opaque == LAST_OPAQUE for command in commands)

    def _look_at(self, command: Command) -> None:
        if command.is_response:
            self.answers[command.code] = self.answers.get(command.code, 0) + 1
            if command.remark is not None and command.remark.startswith("internal error"):
                self.internal.append(f"{command.opaque}: {command.remark}")


@contextmanager
def stranger(port: int) -> Iterator[Stranger]:
    one = Stranger(port)
    try:
        yield one
    finally:
        one.close()


def snapshot(folder: Path) -> dict[str, str]:
    """Every file and folder below this one, with its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


def make_sentinels(folder: Path) -> None:
    """What a path with `..` would meet."""
    for name in ("victim", "commitlog", "config", "consumequeue"):
        (folder / "outside" / name).mkdir(parents=True)
        (folder / "outside" / name / "file").write_text(f"{name} must stay")
    (folder / "file").write_text("must stay")


def fill(server: Server, due_ms: int) -> None:
    """Messages, a group that has read some, timers at a time and at levels, and some far away."""
    with blocking.Admin(server.namesrv) as admin:
        admin.create_topic(TOPIC, QUEUES)
    with blocking.Producer(server.namesrv) as producer:
        for number in range(NOW):
            message = OutgoingMessage(TOPIC, b"now %d" % number, keys=("true-key",))
            producer.send(message, queue=MessageQueue(TOPIC, "broker-a", number % QUEUES))
        for number in range(TIMERS):
            producer.send(OutgoingMessage(TOPIC, b"timer %d" % number, deliver_at_ms=due_ms + number))
        for number in range(LEVELS):
            producer.send(OutgoingMessage(TOPIC, b"level %d" % number, delay_level=5))
        for number in range(FAR):
            producer.send(OutgoingMessage(TOPIC, b"far %d" % number, deliver_at_ms=due_ms + 86_400_000))


def bodies(server: Server) -> list[bytes]:
    """All that is in the topic, by its queues."""
    found: list[bytes] = []
    with blocking.PullConsumer(server.namesrv, group="onlooker") as consumer:
        for queue in consumer.queues(TOPIC):
            offset = 0
            while True:
                pulled = consumer.pull(queue, offset, max_messages=1_000)
                if not pulled.messages:
                    break
                found += [message.body for message in pulled.messages]
                offset = pulled.next_offset
    return found


def pending(server: Server) -> list[tuple[int, int, str]]:
    with blocking.Admin(server.namesrv) as admin:
        return sorted((timer.timer_id, timer.due_ms, timer.sample) for timer in admin.pending_timers(TOPIC))


@pytest.mark.timeout(3_600 if LONG else 400)
def test_no_request_of_a_stranger_changes_what_is_there_or_ends_a_process(tmp_path: Path) -> None:
    data = tmp_path / "deep" / "data"
    data.mkdir(parents=True)
    make_sentinels(tmp_path)
    make_sentinels(tmp_path / "deep")
    outside = {path: content for path, content in snapshot(tmp_path).items() if not path.startswith("deep/data")}
    due_ms = time.time_ns() // 1_000_000 + 20_000
    with serving(data, "--set", "broker.max_topics=500", "--set", "broker.max_groups=500") as server:
        fill(server, due_ms)
        pids = (server.broker_pid(), server.namesrv_pid())
        memory = [resident_bytes(pid) for pid in pids]
        asked = 0
        for port, shapes, share in (
            (server.port, broker_shapes(), 1 - NAME_SERVER_SHARE),
            (server.namesrv_port, name_server_shapes(), NAME_SERVER_SHARE),
        ):
            fuzzer = Fuzzer(20_261_116, shapes, (TOPIC, GROUP, "true-key"))
            frames = fuzzer.frames()
            sent = int(REQUESTS * share)
            with stranger(port) as one:
                for number in range(sent // BATCH):
                    one.exchange(list(islice(frames, BATCH)), broken=fuzzer.broken() if number % 10 == 0 else b"")
                assert one.internal == []
                assert sum(one.answers.values()) > 0.9 * sent, (one.answers, one.cut_off)
                assert one.answers[Response.SUCCESS] > 0.1 * sent, one.answers
                asked += sent
        assert asked == REQUESTS
        assert (server.broker_pid(), server.namesrv_pid()) == pids
        grown = [resident_bytes(pid) - before for pid, before in zip(pids, memory, strict=True)]
        assert max(grown) < MAX_SWELL_BYTES, grown
        expected = expected_bodies()
        wait_until(lambda: len(bodies(server)) >= len(expected), 120, "all timers that are due")
        assert sorted(bodies(server)) == expected
        left = pending(server)
        assert len(left) == FAR
    with serving(data) as server:
        assert sorted(bodies(server)) == expected
        assert pending(server) == left
    assert {path: it for path, it in snapshot(tmp_path).items() if not path.startswith("deep/data")} == outside


def expected_bodies() -> list[bytes]:
    counts = ((b"now", NOW), (b"timer", TIMERS), (b"level", LEVELS))
    return sorted(b"%s %d" % (kind, number) for kind, count in counts for number in range(count))
