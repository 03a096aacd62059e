"""Records as columns say what `decode_record` says of each of them."""

import datetime
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latermq.errors import CorruptStore
from latermq.message.entry_id import encode_entry_id
from latermq.message.ids import pack_host
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import encode_properties
from latermq.message.record import Message, decode_records
from latermq.message.record_writer import encode_record
from latermq.pipeline.source.records import COLUMN_TYPES, RecordBlock

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
LAST_MS = int(datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC).timestamp() * 1000) + 1_000
V4, V6 = pack_host("10.0.0.1", 40_000), pack_host("::1", 40_000)
KNOWN = [
    "KEYS", "TAGS", "UNIQ_KEY", "REAL_TOPIC", "LMQ_DUE_MS", "LMQ_TIMER_ID", "LMQ_DUE_MS_X", "XKEYS", "K", "LMQ_DUE",
]  # fmt: skip


def record(
    body: bytes, properties: dict[str, str], *, offset: int = 0, topic: str = TIMER_TOPIC, host: bytes = V4,
    store_host: bytes = V4, prepared: int = 0,
) -> bytes:  # fmt: skip
    return encode_record(
        topic.encode(), body, encode_properties(properties).encode(), queue_id=3, queue_offset=offset,
        physical_offset=9, born_timestamp_ms=1_700, born_host=host, store_timestamp_ms=1_800, store_host=store_host,
        prepared_transaction_offset=prepared,
    )  # fmt: skip


def rows_of(block: RecordBlock, *columns: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = block.batch(columns or tuple(COLUMN_TYPES)).to_pylist()
    return rows


texts = st.text(st.characters(exclude_characters="\0\1\2", exclude_categories=["Cs"]), min_size=1, max_size=12)
maps = st.dictionaries(st.sampled_from(KNOWN) | texts, texts | st.integers(0, 10**17).map(str), max_size=6)
hosts = st.sampled_from([V4, V6])
records = st.builds(
    lambda body, properties, offset, topic, host, store_host: record(
        body, properties, offset=offset, topic=topic, host=host, store_host=store_host
    ),
    st.binary(max_size=40), maps, st.integers(0, 1 << 55), st.sampled_from(["a", "orders", "t" * 200]), hosts, hosts,
)  # fmt: skip


def expected(message: Message, whole: bytes) -> dict[str, object]:
    due = message.properties.get("LMQ_DUE_MS", "")
    due_ms = int(due) if due.isascii() and due.isdigit() else None
    is_moment = due_ms is not None and due_ms < LAST_MS
    return {
        "broker": "b",
        "topic": message.topic,
        "queue_id": 3,
        "queue_offset": message.queue_offset,
        "kind": "message",
        "timer_id": None,
        "due_ms": due_ms,
        "unique_key": message.properties.get("UNIQ_KEY"),
        "keys": message.properties.get("KEYS"),
        "tags": message.properties.get("TAGS"),
        "takes": message.properties.get("LMQ_TAKES"),
        "born_ms": 1_700,
        "store_ms": 1_800,
        "replaces_level": None,
        "replaces_entry": None,
        "properties": list(message.properties.items()),
        "body": message.body,
        "record": whole,
        "due": EPOCH + datetime.timedelta(milliseconds=due_ms or 0) if is_moment else None,
        "body_text": message.body.decode(errors="replace"),
    }


@given(st.lists(records, max_size=8))
def test_columns_hold_what_the_records_say(whole: list[bytes]) -> None:
    block = RecordBlock(whole, broker="b")
    messages = decode_records(b"".join(whole))
    assert rows_of(block) == [expected(message, raw) for message, raw in zip(messages, whole, strict=True)]


def waiting(**properties: str) -> bytes:
    return record(b"\2KEYS\1no\2", {"REAL_TOPIC": "orders", "REAL_QID": "1", **properties}, offset=70)


@pytest.mark.parametrize(
    ("raw", "kind", "timer_id", "due_ms", "name"),
    [
        (waiting(UNIQ_KEY="u", LMQ_DUE_MS="5000"), "timer", 70, 5000, "u"),
        (waiting(UNIQ_KEY="u", LMQ_DUE_MS="5000", LMQ_TIMER_ID="12"), "timer", 12, 5000, "u"),
        (waiting(UNIQ_KEY="u", LMQ_DUE_MS="5000", LMQ_TIMER_ID="12", LMQ_MOVE="1"), "move", 12, 5000, "u"),
        (waiting(UNIQ_KEY="x", LMQ_DUE_MS="1", TIMER_DEL_UNIQKEY="orders+u"), "cancel", 70, 1, "orders+u"),
        (waiting(LMQ_DUE_MS="1", TIMER_DEL_UNIQKEY="latermq.cut", LMQ_CUT="1:2"), "cut", 70, 1, "latermq.cut"),
        (waiting(UNIQ_KEY="u", TIMER_OUT_MS="4000"), "timer", 70, 5000, "u"),
    ],
)
def test_an_entry_of_the_timer_topic_says_what_it_is(
    raw: bytes, kind: str, timer_id: int, due_ms: int, name: str
) -> None:
    (row,) = rows_of(
        RecordBlock([raw], is_timer_topic=True), "kind", "timer_id", "due_ms", "unique_key", "topic", "keys"
    )
    assert list(row.values()) == [kind, timer_id, due_ms, name, "orders", None]


def test_a_delivered_record_says_which_timer_it_was() -> None:
    delivered = [
        record(b"", {"LMQ_DUE_MS": "9"}, topic="orders", prepared=encode_entry_id(0, 41)),
        record(b"", {"LMQ_DUE_MS": "9", "LMQ_TIMER_ID": "7"}, topic="orders", prepared=encode_entry_id(0, 42)),
        record(b"", {"LMQ_DUE_MS": "9"}, topic="orders", prepared=encode_entry_id(3, 43)),
        record(b"", {}, topic="orders", prepared=123_456),
    ]
    rows = rows_of(RecordBlock(delivered), "timer_id", "replaces_level", "replaces_entry")
    assert [tuple(row.values()) for row in rows] == [(41, 0, 41), (7, 0, 42), (None, 3, 43), (None, None, None)]


def test_rows_come_in_the_order_asked_for_and_records_only_where_wanted() -> None:
    block = RecordBlock(
        [waiting(UNIQ_KEY="a", LMQ_DUE_MS="3"), waiting(UNIQ_KEY="b", LMQ_DUE_MS="2")], is_timer_topic=True
    )
    batch = block.batch(("unique_key", "record"), np.array([1, 0]), np.array([True, False]))
    assert batch["unique_key"].to_pylist() == ["b", "a"]
    assert batch["record"].null_count == 1
    assert batch["record"][0].as_py() == waiting(UNIQ_KEY="b", LMQ_DUE_MS="2")


@pytest.mark.parametrize("at", [0, 3, 4, 39, 84, 85, 86, 87, -1])
def test_damaged_records_are_refused(at: int) -> None:
    raw = bytearray(record(b"body", {"KEYS": "k"}))
    raw[at] ^= 0x55
    if at == -1:
        raw.pop()
    with pytest.raises(CorruptStore, match="no complete record"):
        RecordBlock([raw])


def test_no_records_are_an_empty_batch_of_the_same_columns() -> None:
    batch = RecordBlock([]).batch(tuple(COLUMN_TYPES))
    assert batch.num_rows == 0
    assert batch.schema == pa.schema(list(COLUMN_TYPES.items()))


@pytest.mark.parametrize("seed", range(20))
def test_runs_of_equal_length_and_single_records_are_all_found(seed: int) -> None:
    chance = Random(seed)
    bodies = [
        bytes([number % 256]) * size
        for size, count in ((chance.randrange(40), chance.choice((1, 1, 2, 3, 30, 600, 1_100))) for _ in range(12))
        for number in range(count)
    ]
    whole = [record(body, {}, offset=number) for number, body in enumerate(bodies)]
    block = RecordBlock([b"".join(whole)])
    assert [row["body"] or b"" for row in rows_of(block, "body")] == bodies
    assert block.queue_offsets.tolist() == list(range(len(bodies)))
    with pytest.raises(CorruptStore, match="no complete record"):
        RecordBlock([b"".join(whole)[:-1]])
