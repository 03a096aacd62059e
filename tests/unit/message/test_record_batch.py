"""Many records checked together: the same verdict as one by one, whatever was done to their bytes."""

from hypothesis import given
from hypothesis import strategies as st

from latermq.message.record import check_record, decode_record
from latermq.message.record_batch import RecordBatch, check_records
from latermq.message.record_fields import MAX_SHORT_TOPIC_BYTES
from latermq.message.record_writer import encode_record

LOG_START = 5_000_000_000  # of the first record; no offset in it fits 32 bits
HOSTS = st.sampled_from([b"\x7f\0\0\x01\0\0\x2a\x9f", bytes(15) + b"\x01\0\0\x2a\x9f"])
TOPICS = st.one_of(st.sampled_from(["orders", "цены"]), st.just("t" * (MAX_SHORT_TOPIC_BYTES + 1)))
PROPERTIES = st.sampled_from(["", "KEYS\x01a b\x02", "TAGS\x01größe\x02WAIT\x01true\x02", "x\x01" + "y" * 300])
RECORDS = st.lists(st.tuples(TOPICS, st.binary(max_size=40), PROPERTIES, HOSTS, HOSTS), max_size=6)
DAMAGES = st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 255)), max_size=3)


def log_of(records: list[tuple[str, bytes, str, bytes, bytes]]) -> bytearray:
    log = bytearray()
    for number, (topic, body, properties, born_host, store_host) in enumerate(records):
        log += encode_record(
            topic.encode(),
            body,
            properties.encode(),
            queue_id=number % 3,
            queue_offset=LOG_START + number,
            physical_offset=LOG_START + len(log),
            born_timestamp_ms=1_700_000_000_000,
            born_host=born_host,
            store_timestamp_ms=1_700_000_000_000 + number,
            store_host=store_host,
            sysflag=number % 2,
            prepared_transaction_offset=-number,
        )
    return log


def one_by_one(log: bytearray) -> list[int]:
    """Where the whole records start."""
    at = 0
    starts = []
    while parts := check_record(log, at, len(log), LOG_START + at):
        starts.append(at)
        at += parts.size
    return starts


def read(log: bytearray, count: int) -> RecordBatch:
    return check_records(log, 0, len(log), LOG_START, count)


@given(RECORDS, DAMAGES, st.sampled_from([0, 0, 1, 9, 95, 300]))
def test_a_batch_ends_where_one_record_after_the_other_would(
    records: list[tuple[str, bytes, str, bytes, bytes]], damages: list[tuple[int, int]], lost_bytes: int
) -> None:
    log = log_of(records)
    for at, byte in damages:
        if at < len(log):
            log[at] = byte
    del log[max(0, len(log) - lost_bytes) :]
    assert (read(log, 100).offsets - LOG_START).tolist() == one_by_one(log)


@given(RECORDS, st.integers(1, 7))
def test_a_batch_says_of_each_record_what_the_record_says(
    records: list[tuple[str, bytes, str, bytes, bytes]], count: int
) -> None:
    log = log_of(records)
    batch = read(log, count)
    assert len(batch) == min(count, len(records))
    for row, offset in enumerate(batch.offsets.tolist()):
        message = decode_record(bytes(log), offset - LOG_START)
        assert offset == message.physical_offset
        assert batch.sizes[row] == message.size_bytes
        assert batch.sysflags[row] == message.sysflag
        assert batch.queue_ids[row] == message.queue_id
        assert batch.queue_offsets[row] == message.queue_offset
        assert batch.store_timestamps_ms[row] == message.store_timestamp_ms
        assert batch.prepared_transaction_offsets[row] == message.prepared_transaction_offset
        assert batch.topics[row].decode() == message.topic
        assert batch.properties[row].decode() == records[row][2]


def test_no_byte_of_a_record_leads_the_check_astray() -> None:
    log = log_of([("orders", b"body", "KEYS\x01a\x02", bytes(8), bytes(20))] * 2)
    for at in range(len(log)):
        for flipped in (0x01, 0x10, 0x80, 0xFF):
            damaged = bytearray(log)
            damaged[at] ^= flipped
            assert (read(damaged, 100).offsets - LOG_START).tolist() == one_by_one(damaged), (at, flipped)
