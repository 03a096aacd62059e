"""What a job remembers of its rows: run again, however late, it schedules nothing twice; and repeats are counted."""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from latermq.errors import CorruptStore, IllegalMessage
from latermq.model.rows import RowReceiver
from latermq.pipeline.bulk import job_keys, spool
from latermq.pipeline.bulk.bulk_job import files_in, job_folder
from latermq.pipeline.bulk.job_keys import JobKeys, Keys, keys_of
from latermq.pipeline.bulk.row_frames import Target, requests_of
from latermq.pipeline.bulk.spool import Scheduled, SpoolFile, count_repeated, send_spool, write_spool
from latermq.pipeline.timeline.root import Root, open_root
from latermq.protocol.remoting.rows import decode_rows, encode_receiver, unique_key_of
from tests.support.brokers_in_memory import HOST
from tests.support.faults.aging_broker import AgingBroker
from tests.support.rows import Row, batch_of

TARGET = Target("job", ("broker-a",))


def keys_at(root: Root, job: str = "job") -> JobKeys:
    return JobKeys(root, job_folder(root, job))


class _Reply:
    """The answer to a request: its fields."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = fields

    def header(self, kind: type[Any]) -> Any:
        return msgspec.convert(self._fields, kind, strict=False)


class Scene:
    """A job that is run over a broker whose log ages out."""

    def __init__(self, folder: Path) -> None:
        self.root: Root = open_root(str(folder))
        self.aging = AgingBroker()
        self.asked = self.flushes = self.instance = 0
        self.cuts_power = False  # before the next flush; the broker is back when it is asked
        self.fails_at: int | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def link(self, address: str, *, patience_s: float) -> Iterator["Scene"]:
        yield self

    def call(self, code: int, fields: Mapping[str, str], body: bytes) -> tuple[_Reply, bytes]:
        batch = decode_rows(body)
        with self._lock:
            if not len(batch):
                if batch.topics:
                    self._flush()
                receiver = RowReceiver(self.aging.broker.row_schedule.limits, str(self.instance))
                return _Reply(encode_receiver(receiver)), b""
            self.asked += 1
            if self.asked == self.fails_at:
                raise IllegalMessage("refused")
            done = self.aging.broker.row_schedule.schedule(batch, HOST)
        return _Reply({"scheduled": str(done.scheduled), "known": str(done.known)}), b""

    def _flush(self) -> None:
        if self.cuts_power:
            self.cuts_power = False
            before = self.aging.broker.store.log.end
            self.aging.lose_power(Random(3))
            assert self.aging.broker.store.log.end < before
            self.instance += 1
        self.flushes += 1
        self.aging.broker.store.flush()

    def files(self, *keys: str) -> list[SpoolFile]:
        named = [key.partition("@") for key in keys]
        rows = [{"topic": at or "orders", "body": b"b", "delay_ms": 1_000, "key": key} for key, _, at in named]
        types = {"topic": pa.string(), "body": pa.binary(), "delay_ms": pa.int64(), "key": pa.string()}
        schema = pa.schema(list(types.items()))
        pieces = [pa.RecordBatch.from_pylist(rows[at : at + 3], schema) for at in range(0, len(rows), 3)]
        return write_spool(
            self.root, self.root.at("spool"), (one for piece in pieces for one in requests_of(piece, TARGET))
        )

    def run(self, *keys: str) -> Scheduled:
        return send_spool(self.root, self.files(*keys), {"broker-a": "h:1"}, keys_at(self.root), "job")

    def delivered(self) -> int:
        return sum(len(self.aging.bodies(queue_id=queue)) for queue in range(8))


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    monkeypatch.setattr(spool, "BrokerLink", scene.link)
    yield scene
    scene.aging.close()


def test_a_job_that_is_run_again_after_retention_schedules_nothing(scene: Scene) -> None:
    keys = [f"k{number}" for number in range(10)]
    assert scene.run(*keys) == Scheduled(10, 0)
    scene.aging.age()
    asked = scene.asked
    assert scene.run(*keys) == Scheduled(0, 10)
    assert scene.asked == asked  # no broker remembers them any more, and none is asked
    scene.aging.pass_time(5_000)
    assert scene.aging.broker.pending.count() == 0
    # More rows of the same job are scheduled, and only they.
    assert scene.run(*keys, "new", "newer") == Scheduled(2, 10)
    assert scene.aging.broker.pending.count() == 2


def test_a_run_that_failed_half_way_goes_on_with_the_rest(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "LINKS_PER_BROKER", 1)
    monkeypatch.setattr(spool, "SAVE_EVERY_S", 0.0)
    keys = [f"k{number}" for number in range(12)]
    scene.fails_at = 3
    with pytest.raises(IllegalMessage):
        scene.run(*keys)
    assert len(keys_at(scene.root)) == 6
    scene.aging.age()
    assert scene.run(*keys) == Scheduled(6, 6)


def test_what_a_killed_run_has_not_remembered_its_broker_knows(scene: Scene) -> None:
    keys = [f"k{number}" for number in range(6)]
    scene.run(*keys)
    for file in Path(scene.root.at("bulk", "job", "scheduled")).iterdir():
        file.unlink()
    assert scene.run(*keys) == Scheduled(0, 6)
    scene.aging.age()
    assert scene.run(*keys) == Scheduled(0, 6)  # the second run has remembered them


def test_nothing_is_remembered_before_its_broker_has_flushed_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(keys: JobKeys, taken: list[Keys]) -> None:
        assert scene.aging.broker.store.log.flushed == scene.aging.broker.store.log.end
        assert taken

    monkeypatch.setattr(JobKeys, "add", check)
    scene.run("a", "b")
    assert scene.flushes == 1


def test_requests_above_the_limit_are_remembered_before_further_ones_are_sent(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "HELD_BYTES", 1)
    assert scene.run(*map(str, range(12))) == Scheduled(12)
    assert scene.flushes == scene.asked == 4


def test_what_a_power_cut_took_before_the_flush_is_sent_to_the_broker_that_comes_back(scene: Scene) -> None:
    scene.run("a")
    scene.cuts_power = True
    assert scene.run("a", "b", "c", "d", "e") == Scheduled(4, 1)
    assert scene.aging.broker.pending.count() == 5
    assert scene.run("a", "b", "c", "d", "e") == Scheduled(0, 5)


def test_rows_with_the_key_of_another_row_are_counted_and_named(scene: Scene) -> None:
    keys = ("a", "b", "a", "c", "d", "b", "a")
    wanted = (3, ("a", "b"))
    found = count_repeated(scene.root, scene.files(*keys))
    assert (found.rows, found.sample) == wanted
    assert scene.run(*keys) == Scheduled(4, 0, *wanted)
    assert scene.run(*keys) == Scheduled(0, 4, *wanted)
    assert scene.run("e", "f") == Scheduled(2, 0)


def test_of_many_repeated_keys_a_few_are_named(scene: Scene) -> None:
    found = count_repeated(scene.root, scene.files(*[f"k{number % 20}" for number in range(60)]))
    assert (found.rows, len(found.sample)) == (40, job_keys.SAMPLE_KEYS)


def keys(*names: str) -> Keys:
    return keys_of(batch_of([Row(unique_key_of("job", name)) for name in names]))


def test_one_key_under_two_topics_is_two_timers(scene: Scene) -> None:
    assert scene.run("a", "b@other", "a@other", "a") == Scheduled(3, 0, 1, ("a",))
    assert scene.run("a", "b@other", "a@other", "b") == Scheduled(1, 3)


def test_a_file_that_another_run_has_made_one_with_others_is_looked_for_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = open_root(str(tmp_path))
    keys_at(root).add([keys("a")])
    (first,) = (tmp_path / "bulk" / "job" / "scheduled").iterdir()

    def list_and_lose(*asked: Any) -> list[str]:
        names = files_in(*asked)
        if first.exists():
            first.rename(first.with_name(f"merged{job_keys.ENDING}"))
        return names

    monkeypatch.setattr(job_keys, "files_in", list_and_lose)
    assert keys_at(root).known(keys("a", "b")).tolist() == [True, False]


def test_many_small_files_become_one_and_keep_every_key(tmp_path: Path) -> None:
    root = open_root(str(tmp_path))
    book = keys_at(root)
    for number in range(job_keys.MAX_FILES + 1):
        book.add([keys(f"a{number}"), keys(f"b{number}", f"a{number}")])
    book.merge_files()
    assert len(list((tmp_path / "bulk" / "job" / "scheduled").iterdir())) == 1
    again = keys_at(root)
    again.merge_files()
    assert len(again) == 2 * (job_keys.MAX_FILES + 1)
    assert again.known(keys("a7", "b32", "c")).tolist() == [True, True, False]
    assert keys_at(root, "other").known(keys("a7")).tolist() == [False]


def test_keys_that_end_in_zeros_are_not_mixed_up(tmp_path: Path) -> None:
    odd = np.frombuffer(bytes(16) + b"\1" + bytes(15) + bytes(15) + b"\1", "S16")
    book = keys_at(open_root(str(tmp_path)))
    book.add([odd[1:]])
    assert keys_at(open_root(str(tmp_path))).known(odd).tolist() == [False, True, True]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:20] + b"x" + data[21:]]
)
def test_a_damaged_file_is_said_to_be_and_not_passed_over(tmp_path: Path, damage: Any) -> None:
    root = open_root(str(tmp_path))
    keys_at(root).add([keys("a", "b")])
    (file,) = (tmp_path / "bulk" / "job" / "scheduled").iterdir()
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CorruptStore, match="is damaged"):
        keys_at(root)
