"""Rows of a frame as timers: what is refused and how it is named, unique keys, brokers, and the files they wait in."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from latermq.errors import ConfigError, CorruptStore, StoreError
from latermq.message.properties import decode_properties
from latermq.pipeline.bulk.bulk_job import brokers_of_job, check_job
from latermq.pipeline.bulk.row_frames import BadRow, Request, Target, check_columns, requests_of
from latermq.pipeline.bulk.spool import SpoolFile, read_spool, write_spool
from latermq.pipeline.timeline.root import open_root
from latermq.protocol.remoting.rows import ROWS_AT_ONCE, decode_rows, unique_key_of

ONE = Target("job", ("broker-a",), now_ms=1_790_000_000_000)
TWO = Target("job", ("broker-a", "broker-b"), now_ms=1_790_000_000_000)
TYPES = {
    "topic": pa.string(),
    "body": pa.binary(),
    "due_ms": pa.int64(),
    "delay_ms": pa.int64(),
    "due": pa.timestamp("us", "UTC"),
    "key": pa.string(),
    "tag": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
}


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    filled = [{"topic": "orders", "body": b"b", **row} for row in rows]
    return pa.RecordBatch.from_pylist(filled, pa.schema(list(TYPES.items())))


def test_every_column_reaches_its_timer() -> None:
    moment = datetime.datetime(2027, 1, 1, 0, 0, 0, 1, datetime.UTC)  # a microsecond past: rounded up, never early
    rows = batch_of(
        [
            {"key": "a", "due_ms": 5_000, "tag": "t", "properties": [("x", "1"), ("y", "ü")]},
            {"key": "b", "delay_ms": 7, "topic": "other", "body": None},
            {"key": "c", "due": moment, "properties": []},
        ]
    )
    (request,) = requests_of(rows, ONE)
    decoded = decode_rows(request.body)
    assert (request.broker, request.rows, sorted(request.topics)) == ("broker-a", 3, ["orders", "other"])
    assert [decoded.topics[number] for number in decoded.topic_of] == ["orders", "other", "orders"]
    assert decoded.times_ms.tolist() == [5_000, 7, int(moment.timestamp() * 1000) + 1]
    assert decoded.from_now.tolist() == [False, True, False]
    assert decoded.unique_keys.values() == [unique_key_of("job", key).encode() for key in "abc"]
    assert decoded.bodies.values() == [b"b", b"", b"b"]
    assert decoded.keys.values() == [b"a", b"b", b"c"]
    assert decoded.tags.values() == [b"t", b"", b""]
    assert [decode_properties(value.decode()) for value in decoded.properties.values()] == [
        {"x": "1", "y": "ü"},
        {},
        {},
    ]


def test_a_slice_of_a_batch_is_read_from_where_it_begins() -> None:
    rows = batch_of([{"key": f"k{n}", "due_ms": n, "properties": [("n", str(n))]} for n in range(20)]).slice(5, 10)
    (request,) = requests_of(rows, ONE)
    decoded = decode_rows(request.body)
    assert decoded.keys.values() == [b"k%d" % n for n in range(5, 15)]
    assert decoded.properties.values() == [b"n\x01%d\x02" % n for n in range(5, 15)]


def test_numbers_are_keys_too_and_a_topic_may_be_given_for_all() -> None:
    rows = pa.RecordBatch.from_pydict({"key": pa.array([7, 8]), "delay_ms": pa.array([1, 2], pa.int32())})
    (request,) = requests_of(rows, Target("job", ("broker-a",), topic="later"))
    decoded = decode_rows(request.body)
    assert (decoded.keys.values(), decoded.topics) == ([b"7", b"8"], ["later"])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"due_ms": 1}, r"^row 1: it has no key\. Give every row its own key$"),
        ({"key": "", "due_ms": 1}, r"^row 1 \(key ''\): it has no key"),
        ({"key": "k", "due_ms": -1}, r"^row 1 \(key 'k'\): its due_ms is -1"),
        ({"key": "k", "delay_ms": -5}, "its delay_ms is -5"),
        ({"key": "k"}, "it has no due time"),
        ({"key": "k", "due_ms": 1, "delay_ms": 1}, "it has two due times"),
        ({"key": "k", "due_ms": 1, "topic": None}, "it has no topic"),
        ({"key": "k", "due_ms": 1, "topic": "no spaces"}, "illegal characters"),
        ({"key": "k", "due_ms": 1, "topic": "rmq_sys_wheel_timer"}, "is reserved for the broker"),
        ({"key": "k", "due_ms": 1, "body": bytes((4 << 20) + 1)}, "its body has 4194305 bytes; the limit is 4194304"),
        ({"key": "k\x02", "due_ms": 1}, "its key contains byte 2"),
        ({"key": "k", "due_ms": 1, "tag": "\x00"}, "its tag contains byte 0"),
        ({"key": "k", "due_ms": 1, "properties": [("LMQ_DUE_MS", "1")]}, "property LMQ_DUE_MS is reserved"),
        ({"key": "k", "due_ms": 1, "properties": [("UNIQ_KEY", "1")]}, "property UNIQ_KEY is reserved"),
        ({"key": "k", "due_ms": 1, "properties": [("a", "")]}, "a property has no value"),
        ({"key": "k", "due_ms": 1, "properties": [("a", "x\x01")]}, "value of a property contains byte 1"),
        ({"key": "k", "due_ms": 1, "properties": [("a", "x" * 33_000)]}, "key, tag and properties have 33004 bytes"),
        ({"key": "k", "due_ms": 1 << 55}, "the limit is"),
    ],
)
def test_a_bad_row_is_named_with_its_reason(row: dict[str, Any], reason: str) -> None:
    good = {"key": "good", "due_ms": 5, "properties": [("p", "v")]}
    with pytest.raises(BadRow, match=reason):
        list(requests_of(batch_of([good, row]), ONE))


def test_a_bad_row_is_counted_from_the_beginning_of_its_partition() -> None:
    with pytest.raises(BadRow, match=r"^row 10001 of partition 3: it has no key"):
        list(
            requests_of(
                batch_of([{"key": "a", "due_ms": 1}, {"due_ms": 1}]), ONE, where=" of partition 3", first_row=10_000
            )
        )


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ({"key": pa.string(), "due_ms": pa.int64(), "colour": pa.string()}, "unknown column: colour"),
        ({"topic": pa.string(), "due_ms": pa.int64()}, "no column key"),
        ({"topic": pa.string(), "key": pa.string()}, "no column with a due time"),
        ({"key": pa.string(), "due_ms": pa.int64()}, "no column topic"),
        ({"topic": pa.string(), "key": pa.string(), "due_ms": pa.string()}, "column due_ms has type string"),
        ({"topic": pa.string(), "key": pa.string(), "due": pa.int64()}, "column due has type int64"),
    ],
)
def test_a_frame_with_other_columns_is_refused_before_its_rows_are_read(
    names: dict[str, pa.DataType], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_columns(names, has_topic=False)


def test_a_row_goes_to_the_broker_that_its_key_picks_however_the_rows_are_cut() -> None:
    rows = batch_of([{"key": f"k{n}", "due_ms": n} for n in range(1_000)])

    def places(pieces: list[pa.RecordBatch]) -> dict[bytes, str]:
        found: dict[bytes, str] = {}
        for piece in pieces:
            for request in requests_of(piece, TWO):
                found |= dict.fromkeys(decode_rows(request.body).unique_keys.values(), request.broker)
        return found

    whole = places([rows])
    assert places([rows.slice(at, 77) for at in range(0, 1_000, 77)]) == whole
    assert len(whole) == 1_000
    assert 400 < sum(broker == "broker-a" for broker in whole.values()) < 600
    key = unique_key_of("job", "k7")
    assert whole[key.encode()] == TWO.brokers[int(key[:16], 16) % 2]


def test_requests_are_bounded_in_rows_and_bytes() -> None:
    many = list(requests_of(batch_of([{"key": str(n), "due_ms": n} for n in range(4_500)]), ONE))
    assert [request.rows for request in many] == [ROWS_AT_ONCE, ROWS_AT_ONCE, 500]
    large = list(requests_of(batch_of([{"key": str(n), "due_ms": n, "body": bytes(3 << 20)} for n in range(3)]), ONE))
    assert [request.rows for request in large] == [1, 1, 1]
    wordy = list(requests_of(batch_of([{"key": "a " * 14_000 + str(n), "due_ms": n} for n in range(6)]), ONE))
    assert [request.rows for request in wordy] == [4, 2]
    assert sum(len(decode_rows(request.body)) for request in wordy) == 6


def test_what_was_kept_is_read_back_and_a_file_that_ends_early_is_found(tmp_path: Path) -> None:
    root = open_root(str(tmp_path))
    requests = [Request("a", b"one", 1, ("t",)), Request("b", b"two", 2, ("u",)), Request("a", b"three", 3, ("t", "v"))]
    files = {file.broker: file for file in write_spool(root, root.at("spool"), iter(requests))}
    assert [(file.rows, file.topics) for file in files.values()] == [(4, ("t", "v")), (2, ("u",))]
    assert list(read_spool(root, [files["a"]])) == [(b"one", 1), (b"three", 3)]
    kept = Path(files["a"].path)
    kept.write_bytes(kept.read_bytes()[:-2])
    with pytest.raises(CorruptStore, match="is truncated"):
        list(read_spool(root, [files["a"]]))
    gone = SpoolFile("c", f"{tmp_path}/nothing", 1, 10, ())
    with pytest.raises(StoreError, match="nothing"):
        list(read_spool(root, [gone]))


def test_a_job_keeps_the_brokers_it_began_with(tmp_path: Path) -> None:
    root = open_root(str(tmp_path))
    assert brokers_of_job(root, "j", ["b", "a"]) == ["a", "b"]
    assert brokers_of_job(root, "j", ["a", "b", "c"]) == ["a", "b"]
    assert [path.name for path in (tmp_path / "bulk" / "j").iterdir()] == ["brokers.json"]
    assert brokers_of_job(root, "k", ["a", "b", "c"]) == ["a", "b", "c"]
    with pytest.raises(StoreError, match="sends rows to broker b, which is not running"):
        brokers_of_job(root, "j", ["a", "c"])
    (tmp_path / "bulk" / "j" / "brokers.json").write_text("{}")
    with pytest.raises(CorruptStore, match="not a list of brokers"):
        brokers_of_job(root, "j", ["a", "b"])


@pytest.mark.parametrize("job", ["", "../x", "a b", "x" * 101, ".hidden"])
def test_a_job_needs_a_name_that_a_folder_can_have(job: str) -> None:
    with pytest.raises(ConfigError):
        check_job(job)


def test_keys_of_different_jobs_differ() -> None:
    batch = batch_of([{"key": "a", "due_ms": 1}])
    keys = [decode_rows(next(requests_of(batch, Target(job, ("b",)))).body).unique_keys.values() for job in ("j", "k")]
    assert keys[0] != keys[1]
    assert np.array_equal([len(key) for (key,) in keys], [32, 32])
