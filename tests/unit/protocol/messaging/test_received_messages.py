"""Stored records become messages of the 5.x protocol."""

import contextlib
import gzip
import hashlib
import zlib

import lz4.frame  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from latermq.errors import CorruptStore
from latermq.message.ids import pack_host
from latermq.message.properties import encode_properties
from latermq.message.record_writer import encode_record
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.messages import message_of, read_record
from latermq.protocol.messaging.property_names import ROCKETMQ_NAMES, is_system_name

V4, V6 = pack_host("10.1.2.3", 40001), pack_host("fd00::7", 10911)
UNIQUE = "01AABBCCDDEEFF0011223344556677889900"


def record(
    body: bytes = b"hello",
    *,
    topic: str = "orders",
    born_host: bytes = V4,
    store_host: bytes = V4,
    sysflag: int = 0,
    reconsume_times: int = 0,
    properties: dict[str, str] | None = None,
    **more: str,
) -> bytes:
    return encode_record(
        topic.encode(), body, encode_properties((properties or {}) | more).encode(), queue_id=3, queue_offset=77,
        physical_offset=123_456, born_timestamp_ms=1_700_000_000_123, born_host=born_host,
        store_timestamp_ms=1_700_000_000_456, store_host=store_host, sysflag=sysflag, reconsume_times=reconsume_times,
    )  # fmt: skip


def test_a_plain_record_has_all_fields_of_a_message() -> None:
    message = message_of(record(UNIQ_KEY=UNIQUE, TAGS="a", KEYS="k1 k2", color="red", WAIT="true", reconsume_times=2))
    system = message.system_properties
    assert (message.topic.name, message.body) == ("orders", b"hello")
    assert dict(message.user_properties) == {"color": "red"}
    assert (system.message_id, system.tag, list(system.keys)) == (UNIQUE, "a", ["k1", "k2"])
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (3, 77, 3)
    assert system.born_timestamp.ToMilliseconds() == 1_700_000_000_123
    assert system.store_timestamp.ToMilliseconds() == 1_700_000_000_456
    assert (system.born_host, system.store_host) == ("10.1.2.3:40001", "10.1.2.3:40001")
    assert (system.body_encoding, system.message_type) == (pb.IDENTITY, pb.NORMAL)
    assert system.body_digest.type == pb.MD5
    assert system.body_digest.checksum == hashlib.md5(b"hello").hexdigest().upper()
    for absent in ("delivery_timestamp", "message_group", "trace_context", "receipt_handle", "dead_letter_queue"):
        assert not system.HasField(absent)


def test_a_record_with_ipv6_hosts_is_readable() -> None:
    message = message_of(record(born_host=V6, store_host=V6))
    assert message.system_properties.store_host == "[fd00::7]:10911"
    assert message.body == b"hello"


def test_a_message_without_a_unique_key_has_its_offset_id() -> None:
    assert message_of(record()).system_properties.message_id == f"{V4.hex().upper()}{123_456:016X}"


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, pb.NORMAL),
        ({"__SHARDINGKEY": "g"}, pb.FIFO),
        ({"TIMER_DELIVER_MS": "1700000009000", "__SHARDINGKEY": "g"}, pb.DELAY),
        ({"LMQ_DUE_MS": "1700000009000", "TIMER_DELAY_SEC": "9"}, pb.DELAY),
        ({"DELAY": "3"}, pb.DELAY),
        ({"TRAN_MSG": "true", "TIMER_DELIVER_MS": "1"}, pb.TRANSACTION),
    ],
)
def test_properties_determine_the_type(properties: dict[str, str], kind: int) -> None:
    assert message_of(record(properties=properties)).system_properties.message_type == kind


def test_a_committed_half_is_transactional() -> None:
    assert message_of(record(sysflag=8)).system_properties.message_type == pb.TRANSACTION


def test_the_delivery_time_is_when_the_timer_was_due() -> None:
    system = message_of(record(TIMER_DELAY_SEC="9", LMQ_DUE_MS="1700000009001")).system_properties
    assert system.delivery_timestamp.ToMilliseconds() == 1_700_000_009_001


@pytest.mark.parametrize("text", ["", "-1", "soon", "9" * 40, "²"])
def test_a_delivery_time_that_is_not_a_number_is_left_out(text: str) -> None:
    assert not message_of(record(TIMER_DELIVER_MS=text)).system_properties.HasField("delivery_timestamp")


def test_system_properties_are_not_the_users() -> None:
    names = {*ROCKETMQ_NAMES, "__SHARDINGKEY", "TRACE_CONTEXT", "LMQ_TIMER_ID", "TIMER_X", "__transactionId__"}
    message = message_of(record(properties=dict.fromkeys(names, "1") | {"mine": "2"}))
    assert dict(message.user_properties) == {"mine": "2"}


def test_a_dead_letter_says_where_it_comes_from() -> None:
    by_proxy = message_of(record(DLQ_ORIGIN_TOPIC="orders", DLQ_ORIGIN_MESSAGE_ID=UNIQUE))
    by_broker = message_of(record(topic="%DLQ%g", RETRY_TOPIC="orders", ORIGIN_MESSAGE_ID=UNIQUE))
    for message in (by_proxy, by_broker):
        origin = message.system_properties.dead_letter_queue
        assert (origin.topic, origin.message_id) == ("orders", UNIQUE)
    retried = message_of(record(RETRY_TOPIC="orders", ORIGIN_MESSAGE_ID=UNIQUE))
    assert not retried.system_properties.HasField("dead_letter_queue")


PLAIN = b"a body that repeats itself " * 40


@pytest.mark.parametrize(
    ("sysflag", "stored"),
    [
        (0x001, zlib.compress(PLAIN)),
        (0x301, zlib.compress(PLAIN)),
        (0x101, lz4.frame.compress(PLAIN)),
        (0x201, zstandard.compress(PLAIN)),
    ],
    ids=["zlib without a type", "zlib", "LZ4", "ZSTD"],
)
def test_a_body_that_a_4x_client_compressed_arrives_decompressed(sysflag: int, stored: bytes) -> None:
    message = message_of(record(stored, sysflag=sysflag))
    assert (message.body, message.system_properties.body_encoding) == (PLAIN, pb.IDENTITY)
    assert message.system_properties.body_digest.checksum == hashlib.md5(PLAIN).hexdigest().upper()


@pytest.mark.parametrize(
    "stored",
    [gzip.compress(PLAIN), b"not compressed at all", zlib.compress(bytes(100_000)), zlib.compress(PLAIN)[:9]],
    ids=["gzip", "plain", "too large", "truncated"],
)
def test_gzip_and_bodies_that_cannot_be_decompressed_stay_as_stored(stored: bytes) -> None:
    message = message_of(record(stored, sysflag=1), max_body_bytes=50_000)
    assert (message.body, message.system_properties.body_encoding) == (stored, pb.GZIP)
    assert message.system_properties.body_digest.checksum == hashlib.md5(stored).hexdigest().upper()


def test_records_that_follow_each_other_are_read_one_after_the_other() -> None:
    data = record(b"one") + record(b"two", POP_CK="1 2 3 4 1 b 0 5")
    first, second = pb.Message(), pb.Message()
    end, *place = read_record(data, 0, first)
    assert place == [3, 77, 123_456, None]
    end, *_, check = read_record(data, end, second)
    assert (first.body, second.body, check, end) == (b"one", b"two", "1 2 3 4 1 b 0 5", len(data))


@pytest.mark.parametrize(("times", "attempt"), [(-1, 0), (2**31 - 2, 2**31 - 1), (2**31 - 1, 2**31 - 1)])
def test_a_record_with_any_number_of_attempts_is_read(times: int, attempt: int) -> None:
    assert message_of(record(reconsume_times=times)).system_properties.delivery_attempt == attempt


def test_a_torn_record_is_an_error() -> None:
    with pytest.raises(CorruptStore):
        message_of(record()[:-1])


TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)


@given(
    st.binary(min_size=1, max_size=200),
    st.dictionaries(TEXT.filter(lambda name: not is_system_name(name)), TEXT, max_size=5),
    st.integers(0, 1000),
)
def test_body_and_user_properties_survive(body: bytes, properties: dict[str, str], reconsume_times: int) -> None:
    data = encode_record(
        b"t", body, encode_properties(properties).encode(), queue_id=0, queue_offset=0, physical_offset=0,
        born_timestamp_ms=-1, born_host=V4, store_timestamp_ms=0, store_host=V6, reconsume_times=reconsume_times,
    )  # fmt: skip
    message = pb.Message.FromString(message_of(data).SerializeToString())
    assert (message.body, dict(message.user_properties)) == (body, properties)
    assert message.system_properties.delivery_attempt == reconsume_times + 1


@given(st.data())
def test_damaged_records_are_read_or_reported(data: st.DataObject) -> None:
    whole = bytearray(record(UNIQ_KEY=UNIQUE, TAGS="a", color="red", TIMER_DELIVER_MS="1700000009000", sysflag=1))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptStore):
        message_of(bytes(whole)).SerializeToString()
