"""What a driver, or whoever writes into its folder, says and the broker can check: lies are found before they count."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from latermq.broker.timers.lost_entries import MAX_BLANKS, LostRow, TimelineTail
from latermq.errors import CorruptStore
from latermq.handover.cut import FOREVER_MS
from latermq.handover.ingest_claim import IngestClaim, decode_claim, encode_claim
from latermq.handover.manifest import MANIFEST, MAX_MANIFEST_BYTES, Manifest, WindowFile, encode_manifest
from latermq.handover.window import Window
from latermq.message.names import TIMER_TOPIC
from latermq.pipeline.timeline.root import open_root
from latermq.pipeline.windows.attempt_writer import write_attempt
from latermq.pipeline.windows.attempts import SCHEMA, attempts_of, read_attempt, windows_of
from latermq.server.windows.attempt_files import AttemptFiles
from latermq.timer.far.windows import Window as Played
from tests.support.brokers_in_memory import send
from tests.support.pipeline.far_broker import FAR_MS, FarBroker
from tests.support.pipeline.spark_twin import Row, piece_of
from tests.support.pipeline.window_scene import Scene

STORE_ID = "s" * 32


def log_rows(far: FarBroker) -> list[Row]:
    """Every entry of the timer topic as the row that a truthful driver would make of it."""
    queue = far.broker.store.queues.ensure(TIMER_TOPIC, 0)
    rows = []
    for entry in range(queue.min_offset, queue.next_offset):
        found = queue.entry(entry)
        assert found is not None
        rows.append(Row(entry, entry, 0, 0, "", bytes(far.broker.store.log.read(*found[:2]))))
    return rows


def far_row() -> Row:
    far = FarBroker()
    try:
        send(far.broker, b"far", "our_sys_topic", UNIQ_KEY="u", TIMER_DELAY_MS=str(FAR_MS), KEYS="k")
        far.broker.store.flush()
        [row] = [row for row in log_rows(far) if b"our_sys_topic" in row.record]
    finally:
        far.close()
    return replace(row, due_ms=due_of(row))


def due_of(row: Row) -> int:
    return int(row.record.split(b"LMQ_DUE_MS\x01")[1].split(b"\x02")[0])


LIES: dict[str, tuple[Callable[[Row], Row], str]] = {
    "the truth": (lambda row: row, ""),
    "due sooner": (lambda row: replace(row, due_ms=row.due_ms - 50), "due_ms"),
    "another entry": (lambda row: replace(row, entry=row.entry + 1), "entry_offset"),
    "a negative entry": (lambda row: replace(row, entry=-7), "not all in window"),
    "another timer": (lambda row: replace(row, timer_id=row.timer_id + 1), "timer_id"),
    "no record": (lambda row: replace(row, record=b""), "length differs"),
    "noise": (lambda row: replace(row, record=b"\xff" * 500), "no complete record"),
    "a body changed": (lambda row: replace(row, record=row.record.replace(b"far", b"FAR", 1)), "checksum of a body"),
    "a zero byte": (
        lambda row: replace(row, record=row.record.replace(b"\x02KEYS", b"\x02KE\0S")), "are not valid text",
    ),
    "the broker's topic": (
        lambda row: replace(row, record=row.record.replace(b"our_sys", b"rmq_sys")), "is reserved for the broker",
    ),
    "a message that does not wait": (
        lambda row: replace(row, record=row.record.replace(TIMER_TOPIC.encode(), b"rmq_sys_wheel_xxxxx")),
        "not a timer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_row_says_of_its_record_what_the_record_says(tmp_path: Path, lie: str) -> None:
    make, reason = LIES[lie]
    row = far_row()
    window = Window(STORE_ID, 4, row.entry + 100, row.due_ms - 1_000, row.due_ms + 1_000)
    root = open_root(str(tmp_path))
    row = make(row)
    columns = [pa.array([value], field.type) for value, field in zip(
        (row.due_ms, row.entry, row.timer_id, row.record), SCHEMA, strict=True
    )]  # fmt: skip
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    files = AttemptFiles(str(tmp_path), lambda: STORE_ID)
    played = Played(window.number, window.cut_entry, window.from_ms, window.until_ms, lambda due_ms: due_ms)

    def read() -> int:
        attempt = write_attempt(root, window, [batch], made_by="spark", table_version=0, ingest_offset=0, now_ms=1)
        count, pieces = files.pieces(played, attempt.name, was_checked=True)
        assert sum(len(piece.entries) for piece in pieces) == count
        return count

    if not reason:
        assert read() == 1
        return
    with pytest.raises(CorruptStore, match=reason):
        read()


@pytest.mark.parametrize("skipped", [False, True])
def test_a_timer_of_the_brokers_own_is_neither_played_nor_buried_by_a_window(skipped: bool) -> None:
    """It was scheduled before the first cut, so that it is the broker's; a row says that it is due sooner."""

    async def story() -> None:
        scene = Scene()
        try:
            scene.schedule("own", 26_000)
            await scene.pass_time(1_000)
            begin_ms = scene.clock.now_ms()
            scene.schedule("far", 20_000)
            number = await scene.window_of(begin_ms + 20_000)
            name = await scene.offer_attempt(number)
            window = scene.broker.far.windows.find(number)
            assert window is not None
            found = scene.broker.store.queues.ensure(TIMER_TOPIC, 0).entry(0)
            assert found is not None
            record = bytes(scene.broker.store.log.read(*found[:2]))
            scene.twin.attempts[name].insert(0, Row(0, 0, 0, window.from_ms, "orders+own", record))
            scene.twin.by_window.clear()  # which says that all attempts are equal
            if skipped:
                scene.broker.store.flush()
                await scene.loader.skip(number)
            await scene.pass_time(60_000)
            assert scene.lateness() == {"own": 0} | ({} if skipped else {"far": 0})
            assert list(scene.dead_letters()) == (["far"] if skipped else [])
        finally:
            await scene.stop()

    asyncio.run(story())


def test_rows_of_entries_that_are_in_the_log_are_compared_with_it() -> None:
    far = FarBroker()
    try:
        far.schedule("one")
        far.schedule("two")
        far.broker.store.flush()
        far.broker.timers.intake.read_all()
        one, two = [row for row in log_rows(far) if b"key-" in row.record]
        one, two = (replace(row, due_ms=due_of(row)) for row in (one, two))
        far.broker.far.check_rows(piece_of([one, two]))
        far.broker.far.check_rows(piece_of([]))
        for lie, reason in [
            (replace(one, due_ms=one.due_ms - 1), "differs from the log"),
            (replace(one, entry=two.entry + 1_000), "does not exist yet"),
            (replace(one, record=one.record + b"x"), "differs from the log"),
            (replace(one, entry=0), "differs from the log"),
        ]:
            with pytest.raises(CorruptStore, match=reason):
                far.broker.far.check_rows(piece_of([lie, two]))
    finally:
        far.close()


def test_a_manifest_is_read_up_to_a_bound_and_counts_no_rows_below_none(tmp_path: Path) -> None:
    root = open_root(str(tmp_path))
    folder = tmp_path / "windows" / "s" / "4" / "spark-1-a"
    folder.mkdir(parents=True)
    files = [WindowFile("a", 3, 1, 1), WindowFile("b", -2, 1, 1)]
    manifest = Manifest(
        store_id="s", number=4, cut_entry=9, from_ms=0, until_ms=9, made_by="spark", table_version=0, ingest_offset=0,
        rows=1, files=files,
    )  # fmt: skip
    (folder / MANIFEST).write_bytes(encode_manifest(manifest))
    with pytest.raises(CorruptStore, match="lists an invalid file: 'b'"):
        read_attempt(root, "s", 4, "spark-1-a")
    (folder / MANIFEST).write_bytes(b" " * (MAX_MANIFEST_BYTES + 10))
    with pytest.raises(CorruptStore, match="has more than"):
        read_attempt(root, "s", 4, "spark-1-a")


def test_folders_with_strange_names_hide_no_attempt(tmp_path: Path) -> None:
    root = open_root(str(tmp_path))
    for name in ("spark-²-x", "spark-1-a", "spark-99999999999999999999999-b", "sp ark-1-c"):
        folder = tmp_path / "windows" / "s" / "4" / name
        folder.mkdir(parents=True)
        (folder / MANIFEST).write_bytes(b"")
    for name in ("²", "9" * 200, "٣"):
        (tmp_path / "windows" / "s" / name).mkdir()
    assert attempts_of(root, "s", 4) == ["spark-99999999999999999999999-b", "spark-²-x", "sp ark-1-c", "spark-1-a"]
    assert windows_of(root, "s") == [4]


@pytest.mark.parametrize(("end", "epoch"), [(1 << 60, 1), (1, 1 << 60), (-1, 1), (1, -1)])
def test_a_claim_of_impossible_numbers_is_none(end: int, epoch: int) -> None:
    with pytest.raises(CorruptStore, match=f"the claim x has invalid numbers: end {end}, epoch {epoch}"):
        decode_claim(encode_claim(IngestClaim(end=end, epoch=epoch)), "x")


def test_a_store_is_not_filled_up_because_a_claim_says_so() -> None:
    far = FarBroker()
    try:
        before = far.broker.far.next_entry
        lost = TimelineTail(before + MAX_BLANKS + 1, 9, before, FOREVER_MS, 0, 0)
        with pytest.raises(CorruptStore, match="the claim says that the timeline may have entries below"):
            far.broker.lost_entries(lost).write([])
        near = TimelineTail(before + 10, 9, before + 10, FOREVER_MS, 0, 0)
        rows = {
            LostRow(1 << 40, "cancel", 1, "", "orders+x", b""): "past its claimed end",
            LostRow(before + 1, "timer", 1 << 41, "orders", "x", b"noise"): "is damaged, or belongs to another entry",
        }
        for row, reason in rows.items():
            with pytest.raises(CorruptStore, match=reason):
                far.broker.lost_entries(near).write([row])
        assert far.broker.far.next_entry == before
    finally:
        far.close()
