"""A full file system in memory: an error that says so, never a signal that ends the process.

There even reading a page of a map takes space, if nothing was ever written to it.
"""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SystemClock
from latermq.config import load_config
from latermq.errors import LaterMQError
from latermq.message.properties import encode_properties
from latermq.store.files.disk import FileDisk
from tests.support.brokers_in_memory import HOST, send
from tests.support.needs import small_tmpfs

pytestmark = pytest.mark.real
SETTINGS = (
    "store.segment=1MiB",
    "store.reserve_step=64KiB",
    "store.queue_file_entries=3000",
    "store.index_slots=97",
    "store.index_entries=200",
    "broker.max_message=64KiB",
    "timer.engine=wheel",
    "timer.log_file=1MiB",
)
SIZE = "12m"
# Starts, lets the timers work, and says how it went: what ends it is seen from outside.
START = """
import sys
from pathlib import Path
from tests.fault.test_full_tmpfs import opened
from latermq.errors import LaterMQError

try:
    with opened(Path(sys.argv[1])) as broker:
        for _ in range(10):
            broker.timers.run()
            broker.store.flush()
        print("opened,", broker.timers.failure or "all is well")
except LaterMQError as error:
    print("refused,", error)
"""


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Broker]:
    """A broker that lets go of everything in the end without a word, as one that dies does."""
    config = load_config(settings=SETTINGS, environment={})
    broker = Broker(config, FileDisk(folder), SystemClock(), host="127.0.0.1", port=1, new_store_id="t" * 32)
    yield broker
    broker.timers.engine.close()
    broker.store.release()


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def start(folder: Path) -> str:
    """What a start says, or the signal that ended it."""
    done = subprocess.run(
        [sys.executable, "-c", START, str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode >= 0, f"ended by signal {-done.returncode}"
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


def need_an_index_file(folder: Path) -> None:
    """More keys behind the checkpoint than the index has room for."""
    with opened(folder) as broker:
        for number in range(100):
            send(broker, b"x" * 700, UNIQ_KEY=f"a{number}")
        broker.store.save(broker.store.plan_checkpoint())
        for number in range(250):
            send(broker, b"x" * 700, UNIQ_KEY=f"b{number}")
        broker.store.flush()
    for path in sorted((folder / "index").iterdir())[1:]:
        path.unlink()


def need_the_wheel(folder: Path) -> None:
    """Timers that are to be put into an empty wheel."""
    with opened(folder) as broker:
        for number in range(20):
            send(broker, b"x" * 700, UNIQ_KEY=f"t{number}", TIMER_DELAY_SEC="600")
        broker.store.flush()


def end_with_a_page(folder: Path) -> None:
    """A log that ends where a page does, with a hole behind it."""
    with opened(folder) as broker:
        send(broker, b"x")
        size = broker.store.log.end
        send(broker, b"x" * (8192 - 2 * size + 1))
        assert broker.store.log.end == 8192
    file = FileDisk(folder).map_file("commitlog/" + "0" * 20, 1 << 20)
    file.reserve(8193)
    file.map[8192] = 1
    assert file.zero_from(8192)


@pytest.mark.parametrize("prepare", [need_an_index_file, need_the_wheel, end_with_a_page])
def test_a_start_without_space_is_an_error_and_no_signal(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    with small_tmpfs(tmp_path / "small", SIZE) as disk:
        folder = disk / "data"
        prepare(folder)
        fill(disk)
        for _ in range(2):
            said = start(folder)
            assert "No space left on device" in said or prepare is end_with_a_page, said
        (disk / "filler").unlink()
        assert start(folder).startswith("opened, "), "with space it starts"


def test_a_broker_on_a_full_disk_says_so_and_exits(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "small", SIZE) as disk:
        need_an_index_file(disk / "data")
        fill(disk)
        options = [option for setting in SETTINGS for option in ("--set", setting)]
        done = subprocess.run(
            [sys.executable, "-m", "latermq", "broker", "--data", str(disk / "data"), "--port", "0", *options],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode > 0, f"ended by signal {-done.returncode}"
        assert "no disk space for " in done.stderr
        assert "Free disk space" in done.stderr


def test_without_space_no_send_ends_the_process(tmp_path: Path) -> None:
    """Runs in this process: a signal would end the whole session."""
    with small_tmpfs(tmp_path / "small", SIZE) as disk, opened(disk / "data") as broker:
        refused = 0
        for number in range(3_000):
            properties = encode_properties({"TIMER_DELAY_SEC": "600"} if number % 50 == 0 else {})
            try:
                broker.writer.send(f"topic-{number % 10}", 0, b"x" * 9_000, properties, 1, HOST)
            except LaterMQError:
                refused += 1
            if number % 100 == 0:
                broker.timers.run()
        assert refused > 1_000
