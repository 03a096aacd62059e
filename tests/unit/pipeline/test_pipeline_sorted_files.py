"""Sorted files: the same rows as in the files that they replace, in order, with statistics that are true."""

import json
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from latermq.pipeline.timeline import sorted_files
from latermq.pipeline.timeline.rewrite_plan import RewriteLimits
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.timeline.sorted_files import FILE_SCHEMA, OldRows, Rewrite, WrittenFile, rewrite

TINY = RewriteLimits(held_bytes=5_000, file_bytes=2_000)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    (tmp_path / "timeline").mkdir()
    return open_root(str(tmp_path))


def rows_of(count: int, seed: int, store_id: str = "s") -> list[dict[str, object]]:
    chance = Random(seed)
    rows: list[dict[str, object]] = []
    for number in range(count):
        due_ms = None if chance.random() < 0.05 else chance.randrange(300)
        rows.append(
            {
                "store_id": store_id,
                "entry_offset": seed * 10_000 + number,
                "timer_id": number,
                "kind": "cancel" if due_ms is None else "timer",
                "due_ms": due_ms,
                "topic": chance.choice(["a", "b"]),
                "unique_key": f"k{number}",
                "keys": chance.choice([None, "x y"]),
                "tags": None,
                "record": None if due_ms is None else chance.randbytes(chance.choice((0, 10, 90))),
                "taker": int(due_ms is None),
            }
        )
    return rows


def put(root: Root, name: str, rows: list[dict[str, object]]) -> str:
    table = pa.Table.from_pylist(rows, pa.schema([one for one in FILE_SCHEMA if one.name != "due"]))
    due = pa.array([row["due_ms"] for row in rows], pa.timestamp("ms")).cast(pa.timestamp("ns"))
    pq.write_table(table.append_column("due", due), f"{root.path}/timeline/{name}", row_group_size=37)
    return name


def read(root: Root, files: list[WrittenFile]) -> list[dict[str, object]]:
    tables = [pq.ParquetFile(f"{root.path}/timeline/{file.path}").read() for file in files]
    assert all(table.schema.equals(FILE_SCHEMA) for table in tables)
    return [row for table in tables for row in table.to_pylist()]


def key(row: dict[str, object]) -> tuple[str, int, int]:
    due_ms = row["due_ms"]
    return str(row["store_id"]), -1 if due_ms is None else int(str(due_ms)), int(str(row["entry_offset"]))


def without_due(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{name: value for name, value in row.items() if name != "due"} for row in rows]


def test_new_files_become_sorted_runs_that_fit_in_memory(root: Root) -> None:
    first, second = rows_of(200, 1), rows_of(150, 2, "t")
    paths = [put(root, "part-1.parquet", first), put(root, "part-2.parquet", second)]
    written = rewrite(root, Rewrite(paths, False, TINY))
    found = read(root, written)
    assert sorted(without_due(found), key=key) == sorted(first + second, key=key)
    assert all(str(row["due"] or "")[:4] in ("", "1970") for row in found)
    assert len(written) > 4, "more than one run, and more than one file of a run"
    for file in written:
        rows = read(root, [file])
        assert [key(row) for row in rows] == sorted(map(key, rows))
        assert len({row["store_id"] for row in rows}) == 1


def test_a_merge_is_in_order_across_its_files(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_files, "GROUP_ROWS", 7)
    inputs, everything = [], []
    for seed in range(5):
        rows = rows_of(120, seed)
        everything += rows
        whole = RewriteLimits()
        inputs += [one.path for one in rewrite(root, Rewrite([put(root, f"part-{seed}", rows)], False, whole))]
    assert len(inputs) == 5
    written = rewrite(root, Rewrite(inputs, True, TINY))
    assert len(written) > 2
    assert without_due(read(root, written)) == sorted(everything, key=key)


def test_files_of_earlier_releases_merge_with_those_whose_numbers_are_delta_encoded(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = rows_of(120, 1), rows_of(120, 2)
    with monkeypatch.context() as earlier:
        earlier.setattr(sorted_files, "_ENCODINGS", {})
        paths = [one.path for one in rewrite(root, Rewrite([put(root, "part-1", older)], False, RewriteLimits()))]
    paths += [one.path for one in rewrite(root, Rewrite([put(root, "part-2", newer)], False, RewriteLimits()))]
    [merged] = rewrite(root, Rewrite(paths, True, RewriteLimits()))
    plain, delta, both = (encodings(root, path) for path in (*paths, merged.path))
    assert not plain & DELTA
    assert delta & both & DELTA == DELTA
    assert without_due(read(root, [merged])) == sorted(older + newer, key=key)


DELTA = {(name, "DELTA_BINARY_PACKED") for name in ("entry_offset", "timer_id", "due_ms", "due")} | {
    ("unique_key", "DELTA_LENGTH_BYTE_ARRAY")
}


def encodings(root: Root, path: str) -> set[tuple[str, str]]:
    group = pq.ParquetFile(f"{root.path}/timeline/{path}").metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {(column.path_in_schema, encoding) for column in columns for encoding in column.encodings}


def test_a_merge_refuses_files_that_are_not_sorted(root: Root) -> None:
    with pytest.raises(AssertionError, match="named as sorted"):
        rewrite(
            root, Rewrite([put(root, "sorted-1", rows_of(100, 1)), put(root, "sorted-2", rows_of(9, 2))], True, TINY)
        )


@pytest.mark.parametrize(
    "keys",
    [
        [(7, 5), (7, 9), (7, 3)],  # rows that are due at once, whose entries are not in order
        [(due_ms, entry) for entry in (0, 1) for due_ms in range(37)],  # row groups that are sorted, each by itself
    ],
)
@pytest.mark.timeout(20)
def test_a_merge_of_files_that_another_program_named_as_sorted_ends(root: Root, keys: list[tuple[int, int]]) -> None:
    rows = [{**rows_of(1, 1)[0], "due_ms": due_ms, "entry_offset": entry} for due_ms, entry in keys]
    with pytest.raises(AssertionError, match="named as sorted"):
        rewrite(root, Rewrite([put(root, "sorted-1", rows), put(root, "sorted-2", rows[:1])], True, TINY))


def test_rows_without_a_store_stay(root: Root) -> None:
    rows = [{**row, "store_id": store} for row, store in zip(rows_of(3, 1), ("s", None, "t"), strict=True)]
    written = rewrite(root, Rewrite([put(root, "part-1", rows)], False, RewriteLimits()))
    assert sorted(str(row["store_id"]) for row in read(root, written)) == ["None", "s", "t"]


def test_old_rows_are_left_out_and_unplaced_takers_are_not_old(root: Root) -> None:
    rows = rows_of(200, 1) + rows_of(50, 2, "t")
    old = OldRows("s", 200, 10_150)
    written = rewrite(root, Rewrite([put(root, "part-1", rows)], False, RewriteLimits(), [old]))
    kept = [
        row
        for row in rows
        if row["store_id"] == "t" or row["due_ms"] is None or key(row)[1] >= 200 or key(row)[2] >= 10_150
    ]
    assert 50 < len(kept) < len(rows)
    assert sum(file.rows for file in written) == len(kept)
    assert sorted(without_due(read(root, written)), key=key) == sorted(kept, key=key)
    assert rewrite(root, Rewrite([put(root, "part-2", [])], False, RewriteLimits())) == []
    placed = rewrite(root, Rewrite([put(root, "part-3", rows)], False, RewriteLimits(), drops_unplaced=True))
    assert sum(file.rows for file in placed) == sum(row["due_ms"] is not None for row in rows)


def test_the_statistics_are_those_of_the_rows(root: Root) -> None:
    rows = rows_of(100, 3)
    [file] = rewrite(root, Rewrite([put(root, "part-1", rows)], False, RewriteLimits()))
    stats = json.loads(file.stats)
    dues = [key(row)[1] for row in rows if row["due_ms"] is not None]
    assert stats["numRecords"] == file.rows == 100
    assert (stats["minValues"]["due_ms"], stats["maxValues"]["due_ms"]) == (min(dues), max(dues))
    assert stats["minValues"]["due"] == f"1970-01-01T00:00:00.{min(dues):03d}Z"
    assert stats["nullCount"]["due_ms"] == stats["nullCount"]["due"] == 100 - len(dues) > 0
    assert stats["minValues"]["entry_offset"] == 30_000
    assert stats["maxValues"]["store_id"] == "s"
    assert stats["nullCount"]["topic"] == 0
