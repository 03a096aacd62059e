"""The record of a cancel: its properties, one at a time or for many timers together, and a block of such records."""

from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np

from latermq.arrays import Indices, Ints
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import (
    TAGS,
    TAKES,
    TIMER_DELETE_KEY,
    TIMER_DELIVER_MS,
    UNIQUE_KEY,
    encode_properties,
)
from latermq.message.record_writer import fill_templates, record_template
from latermq.message.slots import slot_of, slots_of
from latermq.message.takes import encode_takes
from latermq.message.timer_code import CANCEL, FLAG, KIND_SHIFT
from latermq.message.timer_name import timer_name
from latermq.store.block import Block
from latermq.timer.admission import waiting_properties
from latermq.timer.directory import RECALL_TAG

CANCEL_BODY = b"0"
# They stand for values in properties that are encoded once per topic.
_DUE_MS, _KEY, _TOPIC = 1_111_111_111_111, "\0", "\3"


def cancel_properties(topic: str, name: str, due_ms: int, takes: str) -> str:
    """Return the encoded properties of a cancel. `takes` are the due times of the timers that it ends."""
    properties = {TIMER_DELIVER_MS: str(due_ms), TIMER_DELETE_KEY: name, UNIQUE_KEY: name, TAGS: RECALL_TAG}
    properties |= {TAKES: takes} if takes else {}
    return encode_properties(waiting_properties(properties, topic, 0, due_ms))


def cancel_block(
    topics: Sequence[str],
    topic_of: Indices,
    keys: Sequence[bytes],
    dues: Ints,
    hashes: Ints,
    now_ms: int,
    host: bytes,
) -> Block:
    """Return cancels of many names with one timer each, equal to single cancels. About 3 µs each.

    `hashes` are those of the cancels in the key index.
    """
    count = len(keys)
    template = record_template(TIMER_TOPIC, 0, born_timestamp_ms=now_ms, born_host=host, store_host=host)
    patterns = {number: _pattern(topics[number]) for number in np.unique(topic_of).tolist()}
    rows = zip(topic_of.tolist(), keys, dues.tolist(), slots_of(dues).tolist(), strict=True)
    properties = [
        patterns[topic] % {b"key": key, b"due": due_ms, b"slot": slot_ms} for topic, key, due_ms, slot_ms in rows
    ]
    bodies = [CANCEL_BODY] * count
    body_sizes = np.full(count, len(CANCEL_BODY))
    properties_sizes = np.fromiter(map(len, properties), np.int64, count)
    sizes = template.size + body_sizes + properties_sizes
    pieces = zip(
        repeat(template.before_body, count), bodies, repeat(template.after_body, count), properties, strict=True
    )
    data = bytearray().join(chain.from_iterable(pieces))
    fill_templates(data, sizes, len(template.before_body), bodies, body_sizes, properties_sizes)
    return Block(
        data=data,
        sizes=sizes,
        store_timestamp_at=np.full(count, template.store_timestamp_at),
        tags=dues | FLAG | CANCEL << KIND_SHIFT,
        queues=[(TIMER_TOPIC, 0)],
        queue_of=np.zeros(count, np.intp),
        key_hashes=hashes.astype(np.int32),
        key_rows=np.arange(count),
        level=0,
        entries=np.zeros(count, np.int64),
    )


def _pattern(topic: str) -> bytes:
    """Return the encoded properties of a cancel in this topic, as a format for key, due time and slot."""
    encoded = cancel_properties(_TOPIC, timer_name(_TOPIC, _KEY), _DUE_MS, encode_takes([_DUE_MS]))
    fields = {_KEY: "%(key)b", str(_DUE_MS): "%(due)d", str(slot_of(_DUE_MS)): "%(slot)d"}
    for placeholder, field in fields.items():
        encoded = encoded.replace(placeholder, field)
    return encoded.replace(_TOPIC, topic.replace("%", "%%")).encode()
