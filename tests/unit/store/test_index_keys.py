"""The keys that records are found under: cut out and hashed as arrays, and never too many of them at once."""

from random import Random

import numpy as np
import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import Size, StoreConfig
from latermq.errors import IllegalMessage
from latermq.message.batch import BatchMember, encode_batch
from latermq.store.block import KEY_COST
from latermq.store.dispatch import HashedKeys, IndexKeys, count_keys, hash_keys, key_hash
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.index.pending_keys import INDEX_BATCH, INDEX_BATCH_BYTES
from tests.support.brokers_in_memory import HOST, messages, open_broker, pass_time

MANY_KEYS = "KEYS\x01" + "a " * 16_000


def keys_of(topics: list[str], properties: list[str]) -> list[tuple[int, int]]:
    """The same as `hash_keys`, one by one."""
    found = []
    for record, (topic, text) in enumerate(zip(topics, properties, strict=True)):
        for name, _, value in (part.partition("\x01") for part in text.split("\x02")):
            keys = value.split(" ") if name == "KEYS" else [value] if name == "UNIQ_KEY" else []
            found += [(key_hash(topic, key), record) for key in keys if key]
    return found


def test_keys_are_the_same_as_one_by_one() -> None:
    chance = Random(5)
    for _ in range(500):
        topics, properties = [], []
        for _ in range(chance.randint(1, 4)):
            names = chance.sample(["KEYS", "UNIQ_KEY", "x", "XKEYS", "a b"], chance.randint(0, 4))
            words = ["a", " ", "ü", "bc", "  ", "k" * 300, "語", "🎯", "語" * 90]
            values = ["".join(chance.choices(words, k=chance.randint(0, 5))) for _ in names]
            text = "\x02".join(f"{name}\x01{value}" for name, value in zip(names, values, strict=True))
            properties.append(text + chance.choice(["", "\x02"]))
            topics.append(chance.choice(["orders", "ü"]))
        hashes, owners = hash_keys(topics, [text.encode() for text in properties])
        expected = keys_of(topics, properties)
        assert list(zip(hashes.tolist(), owners.tolist(), strict=True)) == expected
        assert count_keys([text.encode() for text in properties]) == len(expected)


@pytest.mark.parametrize("letter", ["k", "ü"])
def test_a_long_key_beside_very_many_short_ones_is_hashed_right(letter: str) -> None:
    long = [letter * length for length in (63, 64, 65, 255, 256, 257)]
    text = "KEYS\x01" + " ".join([*(f"{number:x}" for number in range(9_000)), *long])
    hashes, _ = hash_keys(["orders"], [text.encode()])
    assert hashes.tolist() == [number for number, _ in keys_of(["orders"], [text])]


@pytest.mark.parametrize("many", [0, 9_000])
def test_keys_end_to_end_have_the_same_hashes(many: int) -> None:
    keys = ["", "a", "ü", "語🎯", *("ük"[number % 2] * number for number in (63, 64, 65, 256, 257)), ""]
    for some in (keys, [key for key in keys if key.isascii()], []):
        listed = [*some, *(f"{number:x}" for number in range(many))]
        ends = np.cumsum([0, *(len(key.encode()) for key in listed)])
        found = HashedKeys("".join(listed).encode(), ends).under(["t#", "ü#"], np.ones(len(listed), np.intp))
        assert found.tolist() == [key_hash("ü", key) for key in listed]


def test_keys_beside_bytes_that_are_no_text_are_found() -> None:
    hashes, owners = hash_keys(["t", "t"], [b"x\x01\xff\xfe\x02KEYS\x01a \xc3\xbc", b"KEYS\x01b"])
    assert hashes.tolist() == [key_hash("t", key) for key in ("a", "ü", "b")]
    assert owners.tolist() == [0, 0, 1]


def indexed_at_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys are put into the index at a time, from now on."""
    counts: list[int] = []
    put = broker.store.index.put

    def counted(keys: IndexKeys) -> None:
        counts.append(len(keys.hashes))
        put(keys)

    monkeypatch.setattr(broker.store.index, "put", counted)
    return counts


@pytest.mark.parametrize("size", [500, 600, 32_000])
def test_messages_with_many_keys_are_indexed_a_few_at_a_time(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = open_broker(MemoryDisk(), SimulatedClock())
    counts = indexed_at_once(broker, monkeypatch)
    messages = 8 * INDEX_BATCH_BYTES // size
    for _ in range(messages):
        broker.writer.send("orders", 0, b"", MANY_KEYS[:size], 1, HOST)
    broker.store.pending_keys.put()
    assert sum(counts) == messages * count_keys([MANY_KEYS[:size].encode()])
    assert max(counts) <= max(INDEX_BATCH_BYTES, INDEX_BATCH * 512) // 2


def test_a_batch_with_too_many_keys_is_refused_and_one_with_many_spaces_is_not() -> None:
    broker = open_broker(MemoryDisk(), SimulatedClock(), store=StoreConfig(segment=Size(4 << 20)))
    limit = broker.config.broker.max_batch_keys
    members = [BatchMember(0, b"", MANY_KEYS.encode())] * (limit // 16_000)
    broker.writer.send_batch("orders", 0, encode_batch(members), 1, HOST)
    with pytest.raises(IllegalMessage, match=f"have more than {limit} keys"):
        broker.writer.send_batch("orders", 0, encode_batch([*members, members[0]]), 1, HOST)
    prose = BatchMember(0, b"a " * 16_000, ("text\x01" + "a " * 15_000).encode())
    broker.writer.send_batch("orders", 0, encode_batch([prose] * 5), 1, HOST)


def test_timers_with_many_keys_that_are_due_together_are_delivered_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimulatedClock()
    broker = open_broker(MemoryDisk(), clock, store=StoreConfig(segment=Size(16 << 20)))
    text = MANY_KEYS[:28_005] + "\x02TIMER_DELAY_MS\x015000"
    for _ in range(40):
        broker.writer.send("orders", 0, b"", text, 1, HOST)
    broker.store.pending_keys.put()
    counts = indexed_at_once(broker, monkeypatch)
    broker.store.flush()
    pass_time(broker, clock, 10_000)
    broker.store.pending_keys.put()
    assert len(messages(broker)) == 40
    assert sum(counts) == 40 * 14_001  # and a unique key each
    assert max(counts) <= broker.config.timer.block // KEY_COST
