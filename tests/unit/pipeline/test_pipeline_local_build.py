"""The window build without a JVM: complete, exact, and independent of the progress of ingest."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from latermq.errors import ConfigError, CorruptStore, ServiceUnavailable
from latermq.handover.window import Window
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.windows import local_build
from latermq.pipeline.windows.attempts import attempts_of, check_attempt, read_rows
from latermq.pipeline.windows.local_build import TooManyRows, build_locally
from tests.support.faults.timer_histories import (
    History,
    Key,
    append_rows,
    expected_rows,
    random_history,
    table_keys,
    write_timeline,
)


def no_pull(start: int, until: int) -> Iterable[bytes]:
    raise AssertionError(f"entries {start} to {until} are in the table")


def built_keys(root: Root, history: History, window: Window, ingested: int, held_bytes: int = 1 << 20) -> list[Key]:
    attempt = build_locally(root, history.state(ingested), window, history.pull, now_ms=5, held_bytes=held_bytes)
    check_attempt(root, attempt)
    groups = list(read_rows(root, attempt))
    return table_keys(pa.concat_tables(groups)) if groups else []


@pytest.mark.parametrize("seed", range(12))
def test_every_window_of_a_random_history_holds_what_its_definition_says(seed: int, tmp_path: Path) -> None:
    history, other = random_history(seed), random_history(seed + 1000, store_id="another")
    ingested = history.end * (seed % 4) // 3  # nothing, a part or all of it
    root = open_root(str(tmp_path))
    if ingested:
        write_timeline(root.timeline, [history, other], ingested)
    some = 0
    for window in history.windows:
        # So little held in memory that records are read in several passes.
        rows = built_keys(root, history, window, ingested, held_bytes=1 << 20 if seed % 2 else 600)
        assert rows == expected_rows(history.rows, window)
        some += len(rows)
    assert some


def test_records_of_the_tail_that_memory_may_not_hold_are_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History()
    history.cut(10, 10)
    for at in range(100):
        history.send(1_000 + at * 7 % 100, f"k{at}", body=bytes(500))
    window = history.cut(2_000, 2_000)
    size = sum(len(key[3]) for key in expected_rows(history.rows, window))
    spilled: list[int] = []
    write = local_build._Spill.write

    def counted(spill: local_build._Spill, records: list[pa.Array]) -> None:
        spilled.append(sum(map(len, records)))
        write(spill, records)

    monkeypatch.setattr(local_build._Spill, "write", counted)
    root = open_root(str(tmp_path))
    assert built_keys(root, history, window, 0, held_bytes=size) == expected_rows(history.rows, window)
    assert not spilled
    assert built_keys(root, history, window, 0, held_bytes=size - 1) == expected_rows(history.rows, window)
    assert sum(spilled) == 100


@pytest.mark.parametrize("ingested", [False, True])
def test_a_window_above_the_limit_of_rows_is_refused_and_leaves_no_attempt(ingested: bool, tmp_path: Path) -> None:
    history = History()
    history.cut(10, 10)
    for at in range(30):
        history.send(1_000 + at, f"k{at}")
    window = history.cut(2_000, 2_000)
    root, upto = open_root(str(tmp_path)), history.end if ingested else 0
    if ingested:
        write_timeline(root.timeline, [history], upto)
    reason = r"window 2 has more than 29 rows.*Start a driver, .* or raise pipeline.roll_local_rows"
    with pytest.raises(TooManyRows, match=reason):
        build_locally(root, history.state(upto), window, history.pull, now_ms=5, max_rows=29)
    assert not attempts_of(root, window.store_id, window.number)
    assert build_locally(root, history.state(upto), window, history.pull, now_ms=5, max_rows=30).manifest.rows == 30


def test_cancels_that_are_not_ingested_count_towards_the_limit(tmp_path: Path) -> None:
    history = History()
    history.cut(10, 10)
    for at in range(10):
        history.send(1_000, f"k{at}")
        history.cancel(f"k{at}")
    window = history.cut(2_000, 2_000)
    assert len(local_build.read_tail(history.state(0), window, 0, history.pull, max_rows=10).change_names) == 10
    with pytest.raises(TooManyRows, match="more than 9 rows"):
        local_build.read_tail(history.state(0), window, 0, history.pull, max_rows=9)


def test_cancels_and_moves_of_other_spans_are_not_kept_in_memory(tmp_path: Path) -> None:
    history = History()
    history.cut(10, 10)
    for at in range(20):
        history.send(1_000 if at % 2 else 5_000, f"k{at}")
    for at in range(20):
        history.is_placing = at < 10
        history.cancel(f"k{at}")
    window = history.cut(2_000, 2_000)
    tail = local_build.read_tail(history.state(0), window, 0, history.pull)
    assert tail.change_names.to_pylist() == [f"T+k{at}" for at in (1, 3, 5, 7, 9, *range(10, 20))]


def test_a_row_that_is_in_the_table_twice_is_written_once(tmp_path: Path) -> None:
    history = random_history(5)
    root = open_root(str(tmp_path))
    write_timeline(root.timeline, [history], history.end)
    append_rows(root.timeline, history.rows[::3], history.store_id, history.end)
    for window in history.windows:
        for held_bytes in (600, 1 << 20):
            assert built_keys(root, history, window, history.end, held_bytes) == expected_rows(history.rows, window)


def test_what_is_ingested_after_the_state_was_asked_for_is_not_doubled(tmp_path: Path) -> None:
    history = random_history(7)
    root = open_root(str(tmp_path))
    write_timeline(root.timeline, [history], history.end)
    for window in history.windows:
        assert built_keys(root, history, window, history.end // 2) == expected_rows(history.rows, window)


def test_a_table_that_holds_all_up_to_the_cut_needs_no_broker(tmp_path: Path) -> None:
    history = random_history(3)
    root = open_root(str(tmp_path))
    write_timeline(root.timeline, [history], history.end)
    window = history.windows[-1]
    attempt = build_locally(root, history.state(history.end), window, no_pull, now_ms=5)
    assert attempt.manifest.rows == len(expected_rows(history.rows, window))
    assert attempt.manifest.made_by == "local"
    assert attempt.manifest.table_version == DeltaTable(root.timeline).version()


def test_a_cancel_behind_the_cut_takes_nothing_from_the_window(tmp_path: Path) -> None:
    history = History()
    history.cut(100, 50)
    kept = history.send(200, "kept")
    taken = history.send(200, "taken")
    history.cancel("taken")
    window = history.cut(400, 300)
    history.cancel("kept")
    root = open_root(str(tmp_path))
    for ingested in (0, taken, history.end):
        if ingested == taken:
            write_timeline(root.timeline, [history], taken)
        elif ingested:
            append_rows(root.timeline, history.rows[1:], "s", history.end)
        assert [key[1] for key in built_keys(root, history, window, ingested)] == [kept]


def test_a_timer_before_the_first_cut_is_the_brokers_own(tmp_path: Path) -> None:
    history = History()
    history.send(200, "near")
    history.cut(100, 50)
    far = history.send(200, "far")
    window = history.cut(400, 300)
    root = open_root(str(tmp_path))
    assert [key[1] for key in built_keys(root, history, window, 0)] == [far]


def test_a_window_without_rows_has_an_attempt_without_files(tmp_path: Path) -> None:
    history = History()
    window = history.cut(100, 50)
    root = open_root(str(tmp_path))
    attempt = build_locally(root, history.state(0), window, history.pull, now_ms=5)
    assert attempt.manifest.files == []
    assert attempt.manifest.table_version == -1
    assert attempts_of(root, "s", 1) == [attempt.name]


def test_only_cuts_may_be_ingested_and_not_in_the_table(tmp_path: Path) -> None:
    history = History()
    history.cut(100, 50)
    history.cut(110, 60)
    far = history.send(200, "far")
    window = history.cut(400, 300)
    root = open_root(str(tmp_path))
    assert [key[1] for key in built_keys(root, history, window, 2)] == [far]


def test_what_a_table_lost_is_read_from_the_log_that_still_holds_it(tmp_path: Path) -> None:
    history = random_history(2)
    root = open_root(str(tmp_path))
    write_timeline(root.timeline, [history], 25)  # as after a power cut: 60 were reported to the broker
    for window in history.windows:
        assert built_keys(root, history, window, 60) == expected_rows(history.rows, window)


def test_a_table_that_lacks_what_was_ingested_is_an_error_and_no_short_window(tmp_path: Path) -> None:
    history = random_history(2)
    root = open_root(str(tmp_path))
    state = history.state(60, min_entry=40)
    with pytest.raises(CorruptStore, match="has committed all entries below 60"):
        build_locally(root, state, history.windows[-1], history.pull, now_ms=5)
    assert attempts_of(root, "s", history.windows[-1].number) == []


def test_a_broker_that_cannot_serve_up_to_the_cut_is_asked_again(tmp_path: Path) -> None:
    history = random_history(2)
    window = history.windows[-1]

    def short(start: int, until: int) -> Iterable[bytes]:
        return history.pull(start, until - 3)

    with pytest.raises(ServiceUnavailable, match="cannot be read yet"):
        build_locally(open_root(str(tmp_path)), history.state(0), window, short, now_ms=5)


def test_entries_that_are_missing_in_the_middle_are_seen(tmp_path: Path) -> None:
    history = random_history(2)
    window = history.windows[-1]

    def holed(start: int, until: int) -> Iterable[bytes]:
        pieces = list(history.pull(start, until))
        return pieces[:2] + pieces[3:]

    with pytest.raises(CorruptStore, match="did not send the entries from"):
        build_locally(open_root(str(tmp_path)), history.state(0), window, holed, now_ms=5)


def test_a_timeline_of_another_schema_version_is_left_alone(tmp_path: Path) -> None:
    history = random_history(2)
    root = open_root(str(tmp_path))
    write_timeline(root.timeline, [history], history.end, version="3")
    with pytest.raises(ConfigError, match="has schema version 3, not 2") as caught:
        build_locally(root, history.state(history.end), history.windows[-1], no_pull, now_ms=5)
    assert "Use the release that wrote it" in caught.value.remark


def test_a_damaged_file_of_the_timeline_is_named_and_leaves_no_attempt(tmp_path: Path) -> None:
    history = random_history(2)
    root = open_root(str(tmp_path))
    write_timeline(root.timeline, [history], history.end)
    for path in Path(root.timeline).glob("*.parquet"):
        data = bytearray(path.read_bytes())
        data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
        path.write_bytes(data)
    window = history.windows[-1]
    with pytest.raises(CorruptStore, match=r"the timeline .* is damaged"):
        build_locally(root, history.state(history.end), window, no_pull, now_ms=5)
    assert attempts_of(root, "s", window.number) == []
    assert list((tmp_path / "windows" / "s" / str(window.number)).iterdir()) == []


def test_a_uri_that_nothing_can_open_is_a_setting_to_be_changed() -> None:
    with pytest.raises(ConfigError, match="nowhere://x/y cannot be opened"):
        open_root("nowhere://x/y")
