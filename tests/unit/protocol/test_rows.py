"""The body of SCHEDULE_ROWS: what is put in comes out, and nothing else is taken for one."""

import numpy as np
import pytest

from latermq.errors import MalformedRequest
from latermq.model.rows import Column, RowBatch
from latermq.protocol.remoting.rows import MAX_BYTES, MAX_ROWS, decode_rows, encode_rows, unique_key_of
from tests.support.rows import Row, batch_of

ROWS = [
    Row("K1", due_ms=1_800_000_000_000, body=b"\0\1\2", keys="a b", tags="paid", properties={"region": "süd"}),
    Row("K2", delay_ms=5_000, topic="bills", body=b""),
    Row("K3", due_ms=0, topic="orders", keys="ç"),
]


def test_rows_come_out_as_they_were_put_in() -> None:
    batch = batch_of(ROWS)
    found = decode_rows(encode_rows(batch))
    assert found.topics == ["orders", "bills"]
    assert found.topic_of.tolist() == [0, 1, 0]
    assert found.times_ms.tolist() == [1_800_000_000_000, 5_000, 0]
    assert found.from_now.tolist() == [False, True, False]
    for name in ("unique_keys", "bodies", "keys", "tags", "properties"):
        assert getattr(found, name).values() == getattr(batch, name).values()


def test_the_bytes_of_a_body_are_those_that_the_page_tells() -> None:
    body = encode_rows(batch_of([Row("K", due_ms=258, body=b"hi", topic="t")]))
    assert body == b"".join((
        b"LMR1", (1).to_bytes(4, "little"), (1).to_bytes(4, "little"),
        bytes(4), (1).to_bytes(4, "little"), b"t",
        bytes(2), (258).to_bytes(8, "little"), b"\0",
        bytes(4), (1).to_bytes(4, "little"), b"K",
        bytes(4), (2).to_bytes(4, "little"), b"hi",
        bytes(8), bytes(8), bytes(8),
    ))  # fmt: skip


def test_a_batch_may_be_empty() -> None:
    assert len(decode_rows(encode_rows(batch_of([])))) == 0


def test_a_body_cut_short_anywhere_is_refused() -> None:
    body = encode_rows(batch_of(ROWS))
    for size in range(len(body)):
        with pytest.raises(MalformedRequest):
            decode_rows(body[:size])
    with pytest.raises(MalformedRequest):
        decode_rows(body + b"\0")


def test_bytes_that_are_no_rows_are_refused() -> None:
    with pytest.raises(MalformedRequest, match="instead of") as caught:
        decode_rows(b"[" + bytes(100))
    assert "same version" in caught.value.hint


def test_offsets_that_go_back_and_topics_that_are_not_there_are_refused() -> None:
    batch = batch_of(ROWS)
    batch.bodies = Column(b"abc", np.array([0, 3, 1, 3]))
    with pytest.raises(MalformedRequest, match="offsets"):
        decode_rows(encode_rows(batch))
    batch = batch_of(ROWS)
    batch.topic_of = np.array([0, 2, 0], np.uint16)
    with pytest.raises(MalformedRequest, match="row 1 refers to topic 2 of 2"):
        decode_rows(encode_rows(batch))


def test_more_rows_than_a_request_holds_are_refused() -> None:
    count = MAX_ROWS + 1
    nothing = Column.empty(count)
    zeros = np.zeros(count, np.int64)
    batch = RowBatch(["t"], zeros.astype(np.uint16), zeros, zeros != 0, nothing, nothing, nothing, nothing, nothing)
    with pytest.raises(MalformedRequest, match="too many"):
        decode_rows(encode_rows(batch))


def test_rows_with_more_message_keys_or_bytes_than_a_request_holds_are_refused() -> None:
    words = " ".join(["a"] * 16_000)
    decode_rows(encode_rows(batch_of([Row(f"K{number}", keys=words) for number in range(4)])))
    with pytest.raises(MalformedRequest, match="80000 message keys are too many"):
        decode_rows(encode_rows(batch_of([Row(f"K{number}", keys=words) for number in range(5)])))
    long = Row("long", body=bytes(MAX_BYTES))
    decode_rows(encode_rows(batch_of([long])))
    with pytest.raises(MalformedRequest, match="are too many; a request with more than one row"):
        decode_rows(encode_rows(batch_of([long, Row("short")])))


def test_a_unique_key_is_of_its_job_and_key_and_of_nothing_else() -> None:
    assert unique_key_of("job", "key") == unique_key_of("job", "key")
    names = [("job", "key"), ("jobk", "ey"), ("job", "key2"), ("job2", "key"), ("", "jobkey")]
    assert len({unique_key_of(job, key) for job, key in names}) == len(names)
    assert len(unique_key_of("job", "key")) == 32
