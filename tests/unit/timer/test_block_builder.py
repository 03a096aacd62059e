"""Waiting records become delivered records: many at once, with every kind of host, topic and order of properties."""

from random import Random

import numpy as np
import pytest

from latermq.message.entry_id import decode_entry_id
from latermq.message.ids import pack_host
from latermq.message.names import SCHEDULE_TOPIC
from latermq.message.properties import MAX_PROPERTIES_BYTES, encode_properties
from latermq.message.record import Message, check_record, decode_record
from latermq.message.record_fields import SYSFLAG_ABRIDGED, SYSFLAG_HOSTS
from latermq.message.record_writer import encode_record
from latermq.message.slots import slot_of
from latermq.message.stamp import Stamp
from latermq.message.tags import tags_code
from latermq.store.block import Block
from latermq.store.dispatch import index_keys
from latermq.timer.delivery.block_builder import build

V4, V6 = pack_host("10.1.2.3", 4_000), pack_host("::1", 4_000)
LEVEL = 7
STAMP = Stamp("ours")


def waiting_record(chance: Random, number: int, *, sysflag: int = 0, **changes: str) -> bytes:
    """A record as it lies in the schedule topic; properties in the order that chance gives."""
    properties = {
        "UNIQ_KEY": f"{number:032X}", "DELAY": str(LEVEL), "REAL_QID": str(chance.randrange(4)),
        "REAL_TOPIC": chance.choice(("orders", "bills", "t" * 127, "t" * 128, "%RETRY%" + "g" * 200)),
        "X_REAL_TOPIC": "no", "note": "REAL_QID",
    } | changes  # fmt: skip
    if chance.random() < 0.5:
        properties["TAGS"] = chance.choice(("red", "blue", "grün"))
    if chance.random() < 0.5:
        properties["KEYS"] = chance.choice(("one", "one two", "schlüssel", "k" * 300))
    names = list(properties)
    chance.shuffle(names)
    encoded = encode_properties({name: properties[name] for name in names}).encode()
    if not sysflag & SYSFLAG_ABRIDGED and chance.random() < 0.3:
        encoded = encoded[:-1]  # RocketMQ leaves out the last separator
    return encode_record(
        SCHEDULE_TOPIC.encode(),
        b"body %d " % number + b"x" * chance.choice((0, 100, 5_000)),
        encoded,
        queue_id=LEVEL - 1,
        queue_offset=number,
        physical_offset=number * 100,
        born_timestamp_ms=5,
        born_host=chance.choice((V4, V6)),
        store_timestamp_ms=6,
        store_host=chance.choice((V4, V6)),
        flag=3,
        reconsume_times=2,
        sysflag=sysflag,
    )


def build_all(records: list[bytes]) -> tuple[Block | None, list[int], list[int]]:
    sizes = np.array([len(record) for record in records], np.int64)
    dues = np.arange(len(records)) * 700 + 5_000
    return build(LEVEL, np.arange(100, 100 + len(records)), b"".join(records), sizes, dues, STAMP)


def patched(block: Block, at: int) -> list[Message]:
    """The block's records as they are appended at this log offset."""
    rows = block.rows_by_queue()
    physical = block.patch(at, rows.values(), [1_000 * number for number in rows], 9).tolist()
    data = bytes(block.data)
    for place in physical:
        assert check_record(data, place - at, len(data), place) is not None
    return [decode_record(data, place - at) for place in physical]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_built_is_the_same_message_in_its_own_topic(seed: int) -> None:
    chance = Random(seed)
    records = [waiting_record(chance, number) for number in range(chance.randrange(1, 60))]
    block, rows, unusable = build_all(records)
    assert block is not None
    assert (rows, unusable) == (list(range(len(records))), [])
    delivered = patched(block, 5_000)
    next_offsets = {queue: 1_000 * number for number, queue in enumerate(block.queues)}
    for number, (record, message) in enumerate(zip(records, delivered, strict=True)):
        before = decode_record(record)
        queue = (before.properties["REAL_TOPIC"], int(before.properties["REAL_QID"]))
        assert (message.topic, message.queue_id) == queue
        assert message.queue_offset == next_offsets[queue]
        next_offsets[queue] += 1
        assert decode_entry_id(message.prepared_transaction_offset) == (LEVEL, 100 + number)
        assert message.store_timestamp_ms == 9
        for name in ("body", "properties", "born_host", "store_host", "flag", "reconsume_times", "born_timestamp_ms"):
            assert getattr(message, name) == getattr(before, name), name
        assert block.tags[number] == (tags_code(before.properties["TAGS"]) if "TAGS" in before.properties else 0)
    check_keys(block, delivered)


@pytest.mark.parametrize("seed", range(20))
def test_an_abridged_timer_gets_what_it_lacks_and_other_records_nothing(seed: int) -> None:
    chance = Random(seed)
    abridged = [chance.random() < 0.7 for _ in range(40)]
    records = [
        waiting_record(chance, number, sysflag=3 | SYSFLAG_ABRIDGED * one) for number, one in enumerate(abridged)
    ]
    block, rows, _ = build_all(records)
    assert block is not None
    assert len(rows) == 40
    delivered = patched(block, 5_000)
    for number, (record, message) in enumerate(zip(records, delivered, strict=True)):
        before = decode_record(record)
        slot = str(slot_of(5_000 + 700 * number))
        lacks = {"TIMER_OUT_MS": slot, "CLUSTER": "ours", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        assert message.properties == before.properties | (lacks if abridged[number] else {})
        assert message.sysflag & ~SYSFLAG_HOSTS == 3
        assert message.body == before.body
    check_keys(block, delivered)


def test_a_timer_without_room_for_what_it_lacks_is_delivered_without() -> None:
    def record(padding: int) -> bytes:
        return waiting_record(Random(1), 1, sysflag=SYSFLAG_ABRIDGED, REAL_TOPIC="orders", padding="x" * padding)

    most = MAX_PROPERTIES_BYTES - len(encode_properties(decode_record(record(1)).properties).encode())
    records = [record(1 + most - STAMP.most_bytes), record(2 + most - STAMP.most_bytes), record(1 + most)]
    block, rows, _ = build_all(records)
    assert block is not None
    assert rows == [0, 1, 2]
    delivered = patched(block, 0)
    assert not any(message.sysflag & SYSFLAG_ABRIDGED for message in delivered)
    assert ["CLUSTER" in message.properties for message in delivered] == [True, False, False]


def check_keys(block: Block, messages: list[Message]) -> None:
    """The keys' hashes are those that the index would make of the messages."""
    properties = [encode_properties(message.properties).encode() for message in messages]
    offsets = [message.physical_offset for message in messages]
    wanted = index_keys([message.topic for message in messages], properties, offsets, [9] * len(messages))
    assert block.key_hashes.tolist() == wanted.hashes.tolist()
    assert [messages[row].physical_offset for row in block.key_rows] == wanted.offsets.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_parts_rows_and_joins_of_blocks_are_blocks_of_their_records(seed: int) -> None:
    chance = Random(seed)
    block, _, _ = build_all([waiting_record(chance, number) for number in range(30)])
    assert block is not None
    whole = [message.body for message in patched(block, 0)]
    part = block.part(7, 19)
    assert [message.body for message in patched(part, 64)] == whole[7:19]
    check_keys(part, patched(part, 64))
    some = np.array(sorted(chance.sample(range(30), 11)))
    rows = block.rows(some)
    assert [message.body for message in patched(rows, 64)] == [whole[row] for row in some]
    check_keys(rows, patched(rows, 64))
    joined = Block.join([rows, part, block])
    again = patched(joined, 64)
    assert [message.body for message in again] == [*(whole[row] for row in some), *whole[7:19], *whole]
    check_keys(joined, again)
    assert joined.entries.tolist() == [*(100 + some).tolist(), *range(107, 119), *range(100, 130)]


@pytest.mark.parametrize(
    "changes", [{"REAL_TOPIC": ""}, {"REAL_QID": ""}, {"REAL_QID": "x"}, {"REAL_QID": "9" * 10}, {"REAL_QID": "-1"}]
)
def test_a_record_that_names_no_place_is_left_out(changes: dict[str, str]) -> None:
    chance = Random(1)
    records = [waiting_record(chance, 0), waiting_record(chance, 1, sysflag=0, **changes), waiting_record(chance, 2)]
    block, rows, unusable = build_all(records)
    assert block is not None
    assert (rows, unusable) == ([0, 2], [1])
    assert [message.body[:6] for message in patched(block, 0)] == [b"body 0", b"body 2"]


def test_damage_anywhere_in_the_head_leaves_only_that_record_out() -> None:
    records = [waiting_record(Random(number), number) for number in range(3)]
    for at in (0, 3, 4, 7, 39):  # size, magic, and the flag that says how long the hosts are
        damaged = bytearray(records[1])
        damaged[at] ^= 0x10
        block, rows, unusable = build_all([records[0], bytes(damaged), records[2]])
        assert block is not None
        assert (rows, unusable) == ([0, 2], [1]), at


def test_only_damage_makes_no_block() -> None:
    assert build_all([b"\0" * 200, b"x"]) == (None, [], [0, 1])
