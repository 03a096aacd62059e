"""Large jobs are divided by key: each share is played on its own, and together they are the whole job."""

import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from latermq.errors import IllegalMessage
from latermq.pipeline.bulk import divided_spool, job_keys, shares, spool
from latermq.pipeline.bulk.bulk_job import job_folder
from latermq.pipeline.bulk.divided_spool import divide_spool, join_rows
from latermq.pipeline.bulk.job_keys import JobKeys, Keys, keys_of, stored_keys
from latermq.pipeline.bulk.row_frames import Target, requests_of
from latermq.pipeline.bulk.share_runner import SpooledJob, play_shares
from latermq.pipeline.bulk.shares import HEADS, MAX_SHARES, SHARE_ROWS, Share, heads_of, shares_for
from latermq.pipeline.bulk.spool import Scheduled, SpoolFile, read_spool, write_spool
from latermq.pipeline.timeline.root import Root, open_root
from latermq.protocol.remoting.rows import MAX_TOPICS, decode_rows
from tests.unit.pipeline.test_pipeline_job_keys import Scene

TYPES = pa.schema({"topic": pa.string(), "body": pa.binary(), "delay_ms": pa.int64(), "key": pa.string()})


def files_of(root: Root, keys: list[str], brokers: tuple[str, ...] = ("broker-a",)) -> list[SpoolFile]:
    rows = [{"topic": f"T{n % 3}", "body": b"%d" % n, "delay_ms": 60_000 + n, "key": key} for n, key in enumerate(keys)]
    target = Target("job", brokers)
    pieces = [pa.RecordBatch.from_pylist(rows[at : at + 700], TYPES) for at in range(0, len(rows), 700)]
    return write_spool(root, root.at("spool"), (one for piece in pieces for one in requests_of(piece, target)))


def rows_in(root: Root, files: list[SpoolFile]) -> Counter[tuple[str, str, bytes, bytes, bytes, int]]:
    found: Counter[Any] = Counter()
    for file in files:
        for body, _ in read_spool(root, [file]):
            batch = decode_rows(body)
            topics = [batch.topics[number] for number in batch.topic_of]
            columns = (batch.unique_keys.values(), batch.bodies.values(), batch.keys.values(), batch.times_ms.tolist())
            found.update(zip([file.broker] * len(batch), topics, *columns, strict=True))
    return found


def test_the_number_of_shares_is_a_power_of_two_and_grows_with_the_rows() -> None:
    assert shares_for(0, 0, "j") == shares_for(SHARE_ROWS, 0, "j") == [Share(0, HEADS)]
    counts = [len(shares_for(*rows, "j")) for rows in ((SHARE_ROWS, 1), (0, 3 * SHARE_ROWS), (9 * SHARE_ROWS, 1))]
    assert counts == [2, 4, 16]
    limit = MAX_SHARES * SHARE_ROWS
    largest = shares_for(limit, limit, "j")  # a job at the limit that is run again
    assert len(largest) == MAX_SHARES
    assert [share.first for share in largest[1:]] == [share.end for share in largest[:-1]]
    assert (largest[0].first, largest[-1].end) == (0, HEADS)
    for beyond in ((limit + 1, 0), (0, limit + 1)):
        with pytest.raises(
            IllegalMessage, match=r"job j has \d+ rows and \d+ known keys; the limit is 128000000 of each"
        ):
            shares_for(*beyond, "j")


def test_division_keeps_every_row_and_puts_it_into_the_share_of_its_key(tmp_path: Path) -> None:
    root = open_root(str(tmp_path))
    files = files_of(root, [f"k{number}" for number in range(5_000)], ("broker-a", "broker-b"))
    divided = divide_spool(root, root.at("shares"), files, 4)
    assert rows_in(root, divided) == rows_in(root, files)
    assert {(file.broker, file.share) for file in divided} == {(f"broker-{one}", n) for one in "ab" for n in range(4)}
    for file in divided:
        assert (file.rows, file.topics) == (sum(rows for _, rows in read_spool(root, [file])), ("T0", "T1", "T2"))
        for body, rows in read_spool(root, [file]):
            heads = heads_of(keys_of(decode_rows(body)))
            assert rows <= 2_000
            assert set((heads // (HEADS // 4)).tolist()) == {file.share}


def test_a_division_holds_a_file_per_share_open_however_many_brokers_there_are(tmp_path: Path) -> None:
    root = open_root(str(tmp_path))
    brokers = tuple(f"broker-{number}" for number in range(4))
    files = files_of(root, [f"k{number}" for number in range(2_000)], brokers)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files + 64 + 20, limits[1]))
    try:
        divided = divide_spool(root, root.at("shares"), files, 64)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(divided) == 4 * 64
    assert rows_in(root, divided) == rows_in(root, files)


def test_rows_wait_for_others_within_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = open_root(str(tmp_path))
    files = files_of(root, [f"k{number}" for number in range(2_100)])
    whole = divide_spool(root, root.at("whole"), files, 2)
    monkeypatch.setattr(divided_spool, "BUFFER_BYTES", 1_000)
    bounded = divide_spool(root, root.at("bounded"), files, 2)
    assert rows_in(root, bounded) == rows_in(root, whole)
    counts = [max(rows for _, rows in read_spool(root, found)) for found in (whole, bounded)]
    assert counts[1] < 500 < counts[0]


def test_requests_of_many_topics_are_not_joined_beyond_the_limit(tmp_path: Path) -> None:
    root = open_root(str(tmp_path))
    rows = [{"topic": f"T{n}", "body": b"", "delay_ms": 1, "key": str(n)} for n in range(2 * MAX_TOPICS)]
    batches = [pa.RecordBatch.from_pylist(rows[at : at + 100], TYPES) for at in range(0, len(rows), 100)]
    requests = [one for batch in batches for one in requests_of(batch, Target("job", ("broker-a",)))]
    files = write_spool(root, root.at("spool"), requests)
    assert rows_in(root, divide_spool(root, root.at("shares"), files, 1)) == rows_in(root, files)
    assert len(join_rows([decode_rows(one.body) for one in requests[:3]]).topics) == 300


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    found = Scene(tmp_path)
    monkeypatch.setattr(spool, "BrokerLink", found.link)
    monkeypatch.setattr(shares, "SHARE_ROWS", 100)
    yield found
    found.aging.close()


def play(scene: Scene, keys: list[str], **options: Any) -> Scheduled:
    folder = job_folder(scene.root, "job")
    job = SpooledJob(scene.root.uri, "job", scene.root.at("shares"), folder, {"broker-a": "h:1"}, **options)
    return play_shares(job, files_of(scene.root, keys))


def key_files(scene: Scene) -> list[Path]:
    return sorted(Path(f"{job_folder(scene.root, 'job')}/scheduled").iterdir())


def test_a_job_that_is_divided_schedules_each_row_once_however_it_grows(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[int] = []
    read_all = JobKeys._read_all

    def read(self: JobKeys) -> Keys:
        found = read_all(self)
        loaded.append(len(found))
        return found

    monkeypatch.setattr(JobKeys, "_read_all", read)
    first, more = [f"k{number}" for number in range(90)], [f"k{number}" for number in range(900)]
    assert play(scene, first) == Scheduled(90)
    assert len(key_files(scene)) == 1
    assert play(scene, [*more, *more[:7]])[:3] == (810, 90, 7)
    assert play(scene, [*more, "new"], is_dry_run=True)[:3] == (0, 0, 0)
    assert play(scene, [*more, "new"])[:3] == (1, 900, 0)
    assert stored_keys(scene.root, job_folder(scene.root, "job")) == 901
    assert max(loaded) < 200  # of about 100 per share; no process loads all keys


def test_a_share_reads_only_its_keys_even_from_a_file_of_all(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_keys, "READ_KEYS", 64)
    play(scene, [f"k{number}" for number in range(100)])
    (file,) = key_files(scene)
    folder = job_folder(scene.root, "job")
    halves = [JobKeys(scene.root, folder, share) for share in (Share(0, HEADS // 2), Share(HEADS // 2, HEADS))]
    assert sum(map(len, halves)) == len(JobKeys(scene.root, folder)) == 100
    assert min(map(len, halves)) > 20
    # A name without a share, as earlier versions wrote it, stands for all keys.
    file.rename(file.with_name("0123456789abcdef.keys"))
    assert len(JobKeys(scene.root, folder, Share(0, HEADS // 2))) == len(halves[0])


def test_a_share_merges_its_own_files_and_no_others(scene: Scene) -> None:
    folder = job_folder(scene.root, "job")
    low, high = Share(0, HEADS // 2), Share(HEADS // 2, HEADS)
    play(scene, [f"k{number}" for number in range(80)])
    books = [JobKeys(scene.root, folder, share) for share in (low, high)]
    every = np.frombuffer(np.random.default_rng(1).bytes(16 * 400), "S16")
    for number in range(job_keys.MAX_FILES + 1):
        part = every[number * 10 : number * 10 + 10]
        books[0].add([part[low.of(part)]])
    books[1].add([every[high.of(every)]])
    for book in books:
        book.merge_files()
    assert len(key_files(scene)) == 3  # of all keys, of the low ones, and of the high ones
    assert JobKeys(scene.root, folder, low).known(every[low.of(every)][:100]).all()
    assert JobKeys(scene.root, folder, high).known(every[high.of(every)]).all()


def test_a_job_above_the_limit_is_refused_before_a_row_is_scheduled(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "MAX_SHARES", 2)
    keys = [f"k{number}" for number in range(201)]
    with pytest.raises(IllegalMessage, match=r"job job has 201 rows and 0 known keys; the limit is 200 of each"):
        play(scene, keys)
    assert not Path(job_folder(scene.root, "job")).exists()
    assert play(scene, keys[:200]) == Scheduled(200)
    assert play(scene, keys[:200]) == Scheduled(0, 200)
    assert play(scene, keys[200:]) == Scheduled(1)
    with pytest.raises(IllegalMessage, match=r"job job has 1 rows and 201 known keys"):
        play(scene, keys[200:])
