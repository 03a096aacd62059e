"""Records as Apache RocketMQ writes them: encoded here they are the same bytes, decoded they are the same message."""

import ipaddress
from typing import Any

import pytest

from latermq.message.batch import decode_batch
from latermq.message.ids import offset_message_id
from latermq.message.properties import decode_properties
from latermq.message.record import (
    Message,
    check_record,
    decode_record,
    decode_records,
    layout,
)
from latermq.message.record_fields import (
    BLANK,
    BLANK_MAGIC,
    MAGIC,
    MAGIC_LONG_TOPIC,
    body_crc32,
)
from latermq.message.record_writer import encode_record
from tests.golden.files import golden_bytes, golden_json, golden_log

Put = dict[str, Any]

STORE = golden_json("store.json")
LOG = golden_log("store")
SINGLES: list[Put] = [put for put in STORE["puts"] if not put["batch"]]
[BATCH] = [put for put in STORE["puts"] if put["batch"]]
CRC_STORE = golden_json("store-crc.json")
CRC_LOG = golden_log("store-crc")
IPV6_FLAGS = 0x30

each_single = pytest.mark.parametrize("put", SINGLES, ids=lambda put: put["label"])


def host(put: Put, side: str) -> bytes:
    packed: bytes = bytes.fromhex(put[f"{side}_ip_hex"]) + put[f"{side}_port"].to_bytes(4, "big")
    return packed


def encoded(put: Put, body: bytes, properties: bytes, *, flag: int, queue_offset: int, physical_offset: int) -> bytes:
    return encode_record(
        put["topic"].encode(),
        body,
        properties,
        queue_id=put["queue_id"],
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        born_timestamp_ms=put["born_ms"],
        born_host=host(put, "born"),
        store_timestamp_ms=put["store_ms"],
        store_host=host(put, "store"),
        flag=flag,
        # The sender does not set these two: they follow from the addresses.
        sysflag=put["sys_flag"] & ~IPV6_FLAGS,
        reconsume_times=put["reconsume_times"],
        prepared_transaction_offset=put["prepared_transaction_offset"],
    )


@each_single
def test_a_record_is_the_bytes_that_apache_wrote(put: Put) -> None:
    record = encoded(
        put,
        bytes.fromhex(put["body_hex"]),
        put["properties_string"].encode(),
        flag=put["flag"],
        queue_offset=put["queue_offset"],
        physical_offset=put["offset"],
    )
    assert record.hex() == LOG[put["offset"] : put["offset"] + put["size"]].hex()


@each_single
def test_a_record_of_apache_decodes_to_what_was_put(put: Put) -> None:
    message = decode_record(LOG, put["offset"])
    assert message == Message(
        topic=put["topic"],
        body=bytes.fromhex(put["body_hex"]),
        properties=decode_properties(put["properties_string"]),
        flag=put["flag"],
        queue_id=put["queue_id"],
        queue_offset=put["queue_offset"],
        physical_offset=put["offset"],
        sysflag=put["sys_flag"],
        born_timestamp_ms=put["born_ms"],
        born_host=(str(ipaddress.ip_address(bytes.fromhex(put["born_ip_hex"]))), put["born_port"]),
        store_timestamp_ms=put["store_ms"],
        store_host=(str(ipaddress.ip_address(bytes.fromhex(put["store_ip_hex"]))), put["store_port"]),
        reconsume_times=put["reconsume_times"],
        prepared_transaction_offset=put["prepared_transaction_offset"],
        body_crc=put["body_crc"],
        size_bytes=put["size"],
        message_id=put["message_id"],
    )
    assert body_crc32(message.body) == put["body_crc"]
    assert offset_message_id(host(put, "store"), put["offset"]) == put["message_id"]


def test_a_topic_above_127_characters_takes_the_second_magic() -> None:
    magics = {put["label"]: int.from_bytes(LOG[put["offset"] + 4 : put["offset"] + 8], "big") for put in SINGLES}
    assert magics["topic of 127 characters"] == MAGIC
    assert magics["topic of 128 characters, second magic"] == MAGIC_LONG_TOPIC
    assert magics["topic of 200 characters, second magic"] == MAGIC_LONG_TOPIC


def test_a_batch_becomes_records_one_behind_the_other() -> None:
    records = bytearray()
    for number, (flag, body, properties) in enumerate(decode_batch(bytes.fromhex(BATCH["body_hex"]))):
        records += encoded(
            BATCH,
            body,
            properties,
            flag=flag,
            queue_offset=BATCH["queue_offset"] + number,
            physical_offset=BATCH["offset"] + len(records),
        )
    assert records.hex() == LOG[BATCH["offset"] : BATCH["offset"] + BATCH["size"]].hex()
    ids = [message.message_id for message in decode_records(bytes(records))]
    assert ",".join(ids) == BATCH["message_id"]


def test_the_log_is_records_and_blank_tails_without_a_gap() -> None:
    segment_bytes: int = STORE["segment_bytes"]
    starts = {put["offset"] for put in STORE["puts"]}
    blanks = 0
    at = 0
    while at < STORE["end_offset"]:
        segment_end = (at // segment_bytes + 1) * segment_bytes
        parts = check_record(LOG, at, segment_end, at)
        if parts is None:
            assert BLANK.unpack_from(LOG, at) == (segment_end - at, BLANK_MAGIC)
            blanks += 1
            at = segment_end
        else:
            starts.discard(at)
            at += parts.size
    assert at == STORE["end_offset"]
    assert not starts
    assert blanks == len(LOG) // segment_bytes - 1


@pytest.mark.parametrize("put", CRC_STORE["puts"], ids=lambda put: put["label"])
def test_a_record_with_a_checksum_of_its_own_is_read_like_any_other(put: Put) -> None:
    assert check_record(CRC_LOG, put["offset"], len(CRC_LOG), put["offset"]) is not None
    message = decode_record(CRC_LOG, put["offset"])
    checksum = message.properties.pop("__CRC32#")
    assert message.properties == decode_properties(put["properties_string"])
    assert message.size_bytes == put["size"]
    # Ten digits, least significant first, over everything before the property itself.
    reserved = len("__CRC32#") + 12
    assert int(checksum[::-1]) == body_crc32(CRC_LOG[put["offset"] : put["offset"] + put["size"] - reserved])


def test_a_pull_body_is_read_as_apaches_client_reads_it() -> None:
    expected = golden_json("pull-body.json")["messages"]
    messages = list(decode_records(golden_bytes("pull-body.bin")))
    assert len(messages) == len(expected)
    for message, known in zip(messages, expected, strict=True):
        assert message.message_id == known["offset_message_id"]
        # What Java's client calls the message id is the unique key, where there is one.
        assert message.properties.get("UNIQ_KEY", message.message_id) == known["message_id"]
        assert (message.topic, message.queue_id) == (known["topic"], known["queue_id"])
        assert (message.queue_offset, message.physical_offset) == (known["queue_offset"], known["commit_log_offset"])
        assert message.size_bytes == known["store_size"]
        assert message.body.hex() == known["body_hex"]
        assert message.properties == known["properties"]


@pytest.mark.parametrize("put", SINGLES[:8], ids=lambda put: put["label"])
def test_a_record_of_apache_cut_short_is_no_record(put: Put) -> None:
    start, end = put["offset"], put["offset"] + put["size"]
    assert layout(LOG, start, end) is not None
    assert all(layout(LOG, start, limit) is None for limit in range(start, end))
