"""`kill -9` at random moments of a start, with real brokers: the next one works, and everything is there, once."""

import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SystemClock
from latermq.config import load_config
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import encode_properties
from latermq.message.timer_code import TIMER
from latermq.store.files.disk import FileDisk
from latermq.timer.far.far_names import Waiting
from tests.interop.waiting import wait_until
from tests.support.brokers_in_memory import HOST, messages
from tests.support.needs import LONG

pytestmark = pytest.mark.real
KILLS = 250 if LONG else 20  # with each engine
TOPICS = 60
QUEUES = 5
STARTS_A_ROUND = 5
FAR_NAMES = 40
DUE_SOON_MS = (500, 5_000)
SETTINGS = (
    "store.segment=256KiB",
    "store.reserve_step=64KiB",
    "store.index_entries=5000",
    "store.index_slots=997",
    "store.checkpoint_every=1s",
    "broker.max_message=64KiB",
    "timer.log_file=1MiB",
)


class Killed:
    """A data directory whose brokers die young, and what was given to it."""

    def __init__(self, folder: Path, engine: str, chance: Random) -> None:
        self._folder = folder
        self._settings = [*SETTINGS, f"timer.engine={engine}"]
        self._chance = chance
        self._sent: Counter[bytes] = Counter()
        self._log = folder.with_name("broker.log")
        self._opening_s = 0.2

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Broker]:
        """The broker in this process, which lets go of everything without a word, as one that dies does."""
        config = load_config(settings=self._settings, environment={})
        broker = Broker(config, FileDisk(self._folder), SystemClock(), host="127.0.0.1", port=1, new_store_id="k" * 32)
        try:
            yield broker
        finally:
            broker.timers.engine.close()
            broker.far_names.close()
            broker.store.release()

    def fill(self, round_number: int, count: int) -> None:
        """Messages for all queues, some of them delayed; some behind the checkpoint."""
        with self._opened() as broker:
            for number in range(count):
                topic, queue_id = f"topic-{number % TOPICS}", number // TOPICS % QUEUES
                body = b"%d/%d" % (round_number, number)
                properties = {"UNIQ_KEY": body.decode()}
                if number % 7 == 0:
                    properties["TIMER_DELAY_MS"] = str(self._chance.randrange(*DUE_SOON_MS))
                elif number % 11 == 0:
                    properties["DELAY"] = "1"
                padding = b" " * self._chance.randrange(1_000)
                broker.writer.send(
                    topic, queue_id, body + padding, encode_properties(properties), 1_700_000_000_000, HOST
                )
                self._sent[body] += 1
            if self._chance.random() < 0.3:
                broker.store.save(broker.store.plan_checkpoint())

    def add_far_names(self) -> None:
        """Names of timers whose records have left the log."""
        with self._opened() as broker:
            waiting = []
            for number in range(FAR_NAMES):
                properties = encode_properties({"REAL_TOPIC": "far", "UNIQ_KEY": f"far-{number}"})
                waiting.append(Waiting(number, TIMER, 1 << 42, True, properties.encode()))
            broker.far_names.adopt(waiting, broker.store.queues.ensure(TIMER_TOPIC, 0).next_offset, retention_ms=1_000)

    def _start(self) -> subprocess.Popen[bytes]:
        options = [option for setting in self._settings for option in ("--set", setting)]
        arguments = ["--data", str(self._folder), "--host", "127.0.0.1", "--port", "0", "--namesrv", "127.0.0.1:1"]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "latermq", "broker", *arguments, *options], stdout=log, stderr=log
            )

    def _has_begun(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether it holds the lock, and so is at work on the files, or has ended."""
        folder = Path(f"/proc/{process.pid}/fd")
        with contextlib.suppress(FileNotFoundError):
            if any(fd.readlink() == self._folder / "lock" for fd in folder.iterdir()):
                return True
        return process.poll() is not None

    def measure_start(self) -> None:
        """See how long a start is at work, until it serves."""
        process = self._start()
        try:
            wait_until(lambda: self._has_begun(process), 60, "a broker that opens its files", pause_s=0.001)
            begun_s = time.monotonic()
            wait_until(lambda: b"latermq ready" in self._log.read_bytes(), 60, "a broker that is ready", pause_s=0.002)
            self._opening_s = time.monotonic() - begun_s
        finally:
            process.kill()
            process.wait()

    def start_and_kill(self) -> None:
        process = self._start()
        try:
            if self._chance.random() < 0.9:
                wait_until(lambda: self._has_begun(process), 60, "a broker that opens its files", pause_s=0.001)
            time.sleep(self._chance.random() * 1.2 * self._opening_s)
            assert process.poll() is None, f"it did not start: {self._log.read_text()[-2_000:]}"
        finally:
            process.kill()
            process.wait()

    def check(self) -> None:
        """Everything is there once; what waited has come by now."""
        with self._opened() as broker:
            deadline_s = time.monotonic() + 60
            while broker.pending.count() > FAR_NAMES and time.monotonic() < deadline_s:
                time.sleep(min(0.2, broker.timers.run() / 1_000))
            found = self._settled(broker)
            assert found - self._sent == Counter(), "came twice"
            assert self._sent - found == Counter(), "did not come"
            names = [len(list(broker.far_names.pending("far", f"far-{number}", 0))) for number in range(FAR_NAMES)]
            assert names == [1] * FAR_NAMES
            assert len(broker.store.log.closed_segments()) > 2
            for number in range(0, TOPICS * QUEUES, 13):
                topic = f"topic-{number % TOPICS}"
                assert len(list(broker.store.reader.find_by_key(topic, f"0/{number}", 0, 1 << 60))) == 1

    def _settled(self, broker: Broker) -> Counter[bytes]:
        """What is found once the levels have come too; to look at every message takes longer than to deliver one."""
        deadline_s = time.monotonic() + 30
        while (found := self._found(broker)) != self._sent and time.monotonic() < deadline_s:
            while not broker.timers.run():
                pass
        return found

    def _found(self, broker: Broker) -> Counter[bytes]:
        return Counter(
            message.body.rstrip()
            for topic in range(TOPICS)
            for queue_id in range(QUEUES)
            for message in messages(broker, f"topic-{topic}", queue_id)
        )


@pytest.mark.timeout(1_800 if LONG else 300)
@pytest.mark.parametrize("engine", ["wheel", "rocksdb"])
def test_a_broker_killed_again_and_again_while_it_starts_loses_and_doubles_nothing(tmp_path: Path, engine: str) -> None:
    killed = Killed(tmp_path / "data", engine, Random(f"starts with {engine}"))
    killed.fill(0, 2 * TOPICS * QUEUES)
    killed.add_far_names()
    killed.measure_start()
    for number in range(KILLS):
        if number % STARTS_A_ROUND == 0:
            killed.fill(number + 1, TOPICS * QUEUES)
        killed.start_and_kill()
    killed.check()
