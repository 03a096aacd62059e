"""Window attempts: what is written is what is read, and nothing half-done or damaged passes for one."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from latermq.errors import ConfigError, CorruptStore, LaterMQError, StoreError
from latermq.handover.manifest import MANIFEST, Manifest, encode_manifest
from latermq.handover.window import Window
from latermq.model.pipeline_state import PipelineState, WindowState
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.windows import attempt_writer
from latermq.pipeline.windows.attempt_writer import GROUP_BYTES, GROUP_ROWS, row_groups, write_attempt
from latermq.pipeline.windows.attempts import (
    SCHEMA,
    Attempt,
    attempt_folder,
    attempts_of,
    check_attempt,
    find_attempt,
    read_attempt,
    read_checked,
    read_rows,
    remove_finished_windows,
    stores_with_windows,
    windows_of,
)
from tests.support.faults.flaky_files import FlakyFiles, flaky

WINDOW = Window("s", 4, cut_entry=1_000_000, from_ms=1_000, until_ms=2_000)


def batch(rows: list[tuple[int, int, int, bytes]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def some_rows(count: int, size_bytes: int = 20) -> list[tuple[int, int, int, bytes]]:
    return [(1_000 + at * 999 // count, at, at, bytes([at % 251]) * size_bytes) for at in range(count)]


def write(
    root: Root, batches: list[pa.RecordBatch], window: Window = WINDOW, name: str = "", now_ms: int = 77
) -> Attempt:
    return write_attempt(
        root, window, batches, made_by="local", table_version=3, ingest_offset=9, now_ms=now_ms, name=name
    )


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return open_root(str(tmp_path / "pipeline"))


def part_of(root: Root, attempt: Attempt) -> Path:
    return Path(attempt_folder(root, attempt.window, attempt.name)) / attempt.manifest.files[0].name


def test_an_attempt_is_read_back_as_it_was_written(root: Root) -> None:
    rows = some_rows(500)
    attempt = write(root, [batch(rows[:300]), batch(rows[300:])])
    assert attempts_of(root, "s", 4) == [attempt.name]
    assert attempt.name.startswith("local-77-")
    found = read_attempt(root, "s", 4, attempt.name)
    assert found == attempt
    assert found.window == WINDOW
    check_attempt(root, found)
    assert pa.concat_tables(read_rows(root, found)).to_pylist() == pa.Table.from_batches([batch(rows)]).to_pylist()


def test_an_attempt_of_an_earlier_release_has_plain_numbers_and_the_same_rows(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = write(root, [batch(some_rows(500))])
    monkeypatch.setattr(attempt_writer, "_ENCODINGS", {})
    earlier = write(root, [batch(some_rows(500))])
    found = []
    for attempt, has_delta in ((now, True), (earlier, False)):
        check_attempt(root, attempt)
        group = pq.ParquetFile(part_of(root, attempt)).metadata.row_group(0)
        assert [("DELTA_BINARY_PACKED" in group.column(at).encodings) for at in range(4)] == [has_delta] * 3 + [False]
        found.append(pa.concat_tables(read_rows(root, attempt)).to_pylist())
    assert found[0] == found[1] == batch(some_rows(500)).to_pylist()


def test_the_manifest_counts_and_checks_what_is_on_disk(root: Root) -> None:
    attempt = write(root, [batch(some_rows(10))])
    (file,) = attempt.manifest.files
    data = part_of(root, attempt).read_bytes()
    assert (file.name, file.rows, file.size_bytes, file.crc32) == (
        "part-00000.parquet",
        10,
        len(data),
        zlib.crc32(data),
    )
    assert sorted(path.name for path in part_of(root, attempt).parent.iterdir()) == [MANIFEST, "part-00000.parquet"]


def test_a_root_may_be_a_uri(tmp_path: Path) -> None:
    root = open_root((tmp_path / "by uri").as_uri())
    attempt = write(root, [batch(some_rows(10))])
    check_attempt(root, read_attempt(root, "s", 4, attempt.name))
    assert (tmp_path / "by uri" / "windows" / "s" / "4" / attempt.name / MANIFEST).is_file()


def test_a_file_system_that_is_not_local_takes_attempts_too(tmp_path: Path) -> None:
    """Arrow's own file system over a sub-tree stands in for an object store: nothing of it is known to be local."""
    from pyarrow import fs

    files = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    root = Root("store://bucket", files, "bucket")
    attempt = write(root, [batch(some_rows(30))])
    check_attempt(root, read_attempt(root, "s", 4, attempt.name))
    assert windows_of(root, "s") == [4]


def test_row_groups_stay_within_rows_and_bytes() -> None:
    chance = Random(1)
    rows = [
        (1_000, at, at, bytes(chance.choice((10, 900_000)) if at < 2_000 and at % 50 == 0 else 10))
        for at in range(30_000)
    ]
    rows[200] = (1_000, 200, 200, bytes(GROUP_BYTES + 5))
    groups = list(row_groups([batch(rows)]))
    assert [row for group in groups for row in group.column("entry_offset").to_pylist()] == list(range(30_000))
    for group in groups:
        sizes = [len(record) for record in group.column("record").to_pylist()]
        assert len(sizes) <= GROUP_ROWS
        assert sum(sizes) <= GROUP_BYTES or len(sizes) == 1
    assert any(group.num_rows > 10_000 for group in groups)


def test_where_row_groups_end_does_not_depend_on_the_batches() -> None:
    whole = batch(some_rows(45_000))
    pieces = [whole.slice(at, 7_001) for at in range(0, 45_000, 7_001)]
    ends = [group.num_rows for group in row_groups([whole])]
    assert ends == [group.num_rows for group in row_groups(pieces)] == [20_000, 20_000, 5_000]


def test_a_large_window_is_dealt_out_to_several_files(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_writer, "PART_ROWS", 30_000)
    attempt = write(root, [batch(some_rows(65_000, 2))])
    assert [(file.name, file.rows) for file in attempt.manifest.files] == [
        ("part-00000.parquet", 20_000),
        ("part-00001.parquet", 20_000),
        ("part-00002.parquet", 25_000),
    ]
    check_attempt(root, attempt)
    metadata = pq.read_metadata(part_of(root, attempt))
    assert metadata.num_row_groups == 1


def test_a_window_without_rows_is_a_manifest_alone(root: Root) -> None:
    attempt = write(root, [])
    assert (attempt.manifest.rows, attempt.manifest.files) == (0, [])
    check_attempt(root, attempt)
    assert list(read_rows(root, attempt)) == []


@pytest.mark.parametrize(
    "rows",
    [
        [(1_500, 1, 1, b"a"), (1_400, 2, 2, b"b")],
        [(1_500, 1, 2, b"a"), (1_500, 2, 1, b"b")],
        [(1_500, 1, 1, b"a"), (1_500, 1, 1, b"a")],
        [(999, 1, 1, b"early")],
        [(2_000, 1, 1, b"late")],
        [(1_500, 1_000_000, 1, b"behind the cut")],
    ],
)
def test_rows_that_do_not_make_a_window_are_not_written(root: Root, rows: list[tuple[int, int, int, bytes]]) -> None:
    with pytest.raises(CorruptStore, match="the rows to be written"):
        write(root, [batch([row]) for row in rows])
    assert attempts_of(root, "s", 4) == []
    assert not list(Path(root.path).rglob("*.parquet*"))


def test_a_failed_build_leaves_nothing(root: Root) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(some_rows(25_000))
        raise StoreError("the timeline is gone")

    with pytest.raises(StoreError, match="the timeline is gone"):
        write_attempt(root, WINDOW, batches(), made_by="local", table_version=3, ingest_offset=9, now_ms=77)
    assert list(Path(root.path).rglob("*.parquet*")) == []
    assert attempts_of(root, "s", 4) == []


def test_a_full_disk_is_reported_and_leaves_nothing(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    real = attempt_writer._open_sink
    for full in ("part-00000.parquet", MANIFEST):
        monkeypatch.setattr(
            attempt_writer,
            "_open_sink",
            lambda root, path, full=full: real(root, "/dev/full" if full in path else path),
        )
        with pytest.raises(StoreError, match="disk full: ") as caught:
            write(root, [batch(some_rows(2_000, 1_000))])
        assert caught.value.retriable
        assert "Free disk space" in caught.value.remark
        assert attempts_of(root, "s", 4) == []
        assert list(Path(root.path, "windows", "s", "4").iterdir()) == []


def test_a_root_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError, match=r"window 4 at .*/file"):
        write(open_root(str(tmp_path / "file")), [])


def test_a_wrong_uri_is_reported() -> None:
    for uri in ("nowhere://x/y", "file://host/x"):
        with pytest.raises(ConfigError, match="cannot be opened"):
            open_root(uri)


@pytest.mark.parametrize("damage", ["flip", "shorten", "other rows", "garbage"])
def test_a_damaged_part_does_not_pass(root: Root, damage: str) -> None:
    attempt = write(root, [batch(some_rows(200))])
    path = part_of(root, attempt)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 4
    elif damage == "shorten":
        del data[-9:]
    elif damage == "garbage":
        data[:] = bytes(len(data))
    path.write_bytes(data)
    if damage == "other rows":
        pq.write_table(pa.Table.from_batches([batch(some_rows(199))]), path)
    with pytest.raises(CorruptStore, match=r"part-00000\.parquet") as caught:
        check_attempt(root, attempt)
    assert "another attempt" in caught.value.remark


def test_a_read_that_fails_says_nothing_about_what_an_attempt_holds(root: Root) -> None:
    attempt = write(root, [batch(some_rows(200))])
    counting = flaky(root, lambda path, number: False)
    list(read_checked(counting, read_attempt(counting, "s", 4, attempt.name)))
    reads = cast(FlakyFiles, counting.files).reads
    assert reads > 4
    for failing in range(reads):
        broken = flaky(root, lambda path, number, failing=failing: number == failing)  # type: ignore[misc]
        with pytest.raises(StoreError, match="Input/output error"):
            list(read_checked(broken, read_attempt(broken, "s", 4, attempt.name)))


def test_a_part_that_is_not_there_may_come_back(root: Root) -> None:
    attempt = write(root, [batch(some_rows(200))])
    path = part_of(root, attempt)
    away = path.rename(path.with_suffix(".away"))
    for read in (check_attempt, lambda *arguments: list(read_checked(*arguments))):
        with pytest.raises(StoreError, match=r"part-00000\.parquet is missing"):
            read(root, attempt)
    away.rename(path)
    check_attempt(root, attempt)


def test_no_row_of_a_damaged_part_is_read_by_who_checks(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_writer, "PART_ROWS", 100)
    monkeypatch.setattr(attempt_writer, "GROUP_ROWS", 50)
    attempt = write(root, [batch(some_rows(200))])
    path = part_of(root, attempt).with_name("part-00001.parquet")
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    read: list[int] = []
    with pytest.raises(CorruptStore, match="the checksum of"):
        read.extend(group.num_rows for group in read_checked(root, attempt))
    assert read == [50, 50]


def rewritten(root: Root, attempt: Attempt, **changes: object) -> None:
    manifest = msgspec.structs.replace(attempt.manifest, **changes)
    folder = Path(attempt_folder(root, attempt.window, attempt.name))
    (folder / MANIFEST).write_bytes(encode_manifest(manifest))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rows": 7}, "says 7 rows"),
        ({"number": 5}, "belongs to window 5"),
        ({"store_id": "other"}, "of store other"),
        ({"version": 2}, "has version 2, not 1"),
        ({"until_ms": 1_500}, "are not all in window 4"),
        ({"from_ms": 1_500}, "are not all in window 4"),
        ({"cut_entry": 100}, "are not all in window 4"),
    ],
)
def test_a_manifest_that_does_not_match_does_not_pass(root: Root, changes: dict[str, object], reason: str) -> None:
    attempt = write(root, [batch(some_rows(200))])
    rewritten(root, attempt, **changes)
    with pytest.raises(CorruptStore, match=reason):
        check_attempt(root, read_attempt(root, "s", 4, attempt.name))


def test_a_manifest_that_is_cut_short_does_not_pass(root: Root) -> None:
    attempt = write(root, [batch(some_rows(20))])
    path = part_of(root, attempt).parent / MANIFEST
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(CorruptStore, match="is damaged"):
        read_attempt(root, "s", 4, attempt.name)
    assert find_attempt(root, WINDOW) is None


def test_an_attempt_that_is_gone_is_an_error_with_its_path(root: Root) -> None:
    with pytest.raises(LaterMQError, match=r"windows/s/4/none/manifest\.json"):
        read_attempt(root, "s", 4, "none")


def test_a_file_with_other_columns_is_no_part(root: Root) -> None:
    attempt = write(root, [batch(some_rows(20))])
    pq.write_table(pa.table({"due_ms": [1]}), part_of(root, attempt))
    with pytest.raises(CorruptStore, match="does not have the columns"):
        list(read_rows(root, attempt))


def test_attempts_are_listed_by_age_and_without_manifest_not_at_all(root: Root) -> None:
    names = ["spark-30-b", "local-9-a", "local-100-c"]
    for name in names:
        write(root, [], name=name)
    half = Path(attempt_folder(root, WINDOW, "local-1-half"))
    half.mkdir()
    (half / "part-00000.parquet").write_bytes(b"PAR1")
    (half / f"{MANIFEST}.draft").write_bytes(b"{}")
    assert attempts_of(root, "s", 4) == ["local-9-a", "spark-30-b", "local-100-c"]
    assert attempts_of(root, "s", 5) == []
    assert stores_with_windows(root) == ["s"]


def test_an_attempt_counts_only_for_the_very_window_it_was_made_of(root: Root) -> None:
    attempt = write(root, [])
    assert find_attempt(root, WINDOW) == attempt
    assert find_attempt(root, Window("s", 4, cut_entry=5, from_ms=1_000, until_ms=2_000)) is None
    assert find_attempt(root, Window("s", 3, cut_entry=5, from_ms=1_000, until_ms=2_000)) is None


def state(*, done_upto: int, done_wake_ms: int, playing: tuple[int, ...] = ()) -> PipelineState:
    windows = [WindowState(number, 0, 0, 0) for number in playing]
    return PipelineState("s", "broker-a", 1, 0, 0, 0, 0, done_upto, done_wake_ms, windows=windows)


def test_windows_are_removed_once_all_their_rows_are_delivered(root: Root) -> None:
    windows = {number: Window("s", number, number * 10, number * 100, number * 100 + 100) for number in (1, 2, 3, 4)}
    for window in windows.values():
        write(root, [], window)
    write(root, [], Window("other", 1, 10, 100, 200))
    assert remove_finished_windows(root, state(done_upto=0, done_wake_ms=10_000)) == []
    assert remove_finished_windows(root, state(done_upto=1_000, done_wake_ms=199)) == []
    assert remove_finished_windows(root, state(done_upto=25, done_wake_ms=10_000)) == [1, 2]
    assert remove_finished_windows(root, state(done_upto=1_000, done_wake_ms=10_000, playing=(4,))) == [3]
    assert windows_of(root, "s") == [4]
    assert windows_of(root, "other") == [1]


def test_remains_of_a_killed_build_are_removed_with_finished_windows(root: Root) -> None:
    for number in (1, 3):
        write(root, [], Window("s", number, number * 10, number * 100, number * 100 + 100))
    for number in (2, 4):
        Path(attempt_folder(root, Window("s", number, 0, 0, 0), "spark-5-half")).mkdir(parents=True)
    assert remove_finished_windows(root, state(done_upto=1_000, done_wake_ms=10_000)) == [1, 2, 3]
    assert windows_of(root, "s") == [4]


def test_the_manifest_of_an_attempt_says_where_its_rows_came_from(root: Root) -> None:
    manifest: Manifest = write(root, [batch(some_rows(1))]).manifest
    assert (manifest.table_version, manifest.ingest_offset, manifest.made_by) == (3, 9, "local")
