"""Records written many at once are the same bytes as records written one by one."""

import random
from itertools import chain

import numpy as np
import pytest

from latermq.message.properties import MAX_PROPERTIES_BYTES
from latermq.message.record import layout
from latermq.message.record_fields import HEAD, MIN_RECORD_BYTES, topic_field
from latermq.message.record_layouts import Numbers, lay_out
from latermq.message.record_writer import (
    encode_record,
    fill_templates,
    record_template,
    set_flags,
    set_places,
    set_prepared,
    set_queue_ids,
    set_topics,
)

V4, V6 = bytes(range(8)), bytes(range(20))
HOSTS = [(V4, V4), (V4, V6), (V6, V4), (V6, V6)]
TOPICS = ["t", "x" * 127, "x" * 128, "x" * 255]


@pytest.mark.parametrize(("born_host", "store_host"), HOSTS)
@pytest.mark.parametrize("topic", TOPICS)
def test_a_filled_template_is_the_record_that_is_written_alone(topic: str, born_host: bytes, store_host: bytes) -> None:
    choose = random.Random(len(topic))
    bodies = [choose.randbytes(size) for size in (0, 1, 300, 70_000)]
    properties = [choose.randbytes(size) for size in (0, MAX_PROPERTIES_BYTES, 1, 50)]
    flags = [0, -1, 7, 1 << 30]
    sender = {"born_timestamp_ms": 5, "born_host": born_host, "store_host": store_host, "sysflag": 1}
    template = record_template(topic, 3, reconsume_times=2, **sender)  # type: ignore[arg-type]
    pieces = zip(
        [template.before_body] * 4, bodies, [template.after_body] * 4, properties, strict=True
    )  # fmt: skip
    data = bytearray().join(chain.from_iterable(pieces))
    body_sizes, properties_sizes = (np.array(list(map(len, texts))) for texts in (bodies, properties))
    sizes = template.size + body_sizes + properties_sizes
    starts = fill_templates(data, sizes, len(template.before_body), bodies, body_sizes, properties_sizes)
    set_flags(data, starts, flags)
    stamps_at = np.full(4, template.store_timestamp_at)
    set_places(data, starts, 1_000, np.arange(40, 44), stamps_at, 99)
    one_by_one = [
        encode_record(
            topic.encode(), body, properties[row], queue_id=3, queue_offset=40 + row,
            physical_offset=1_000 + int(starts[row]), store_timestamp_ms=99, flag=flags[row], reconsume_times=2,
            **sender,  # type: ignore[arg-type]
        )
        for row, body in enumerate(bodies)
    ]  # fmt: skip
    assert bytes(data) == b"".join(one_by_one)


@pytest.mark.parametrize(("born_host", "store_host"), HOSTS)
@pytest.mark.parametrize("topic", TOPICS)
def test_a_record_that_gets_another_topic_is_the_one_that_is_written_for_it(
    topic: str, born_host: bytes, store_host: bytes
) -> None:
    def written(name: str, queue_id: int, prepared: int) -> bytes:
        return encode_record(
            name.encode(), b"body", b"a\x01b", queue_id=queue_id, queue_offset=0, physical_offset=0,
            born_timestamp_ms=5, born_host=born_host, store_timestamp_ms=0, store_host=store_host,
            prepared_transaction_offset=prepared,
        )  # fmt: skip

    waiting, wanted = written("waiting", 0, 0), written(topic, 9, 1 << 61)
    parts = lay_out(Numbers(waiting, len(waiting)), np.array([0]), np.array([len(waiting)]))
    magic, field = topic_field(topic.encode())
    tail_at = int(parts.properties_at[0]) - 2
    data = bytearray(waiting[: int(parts.bodies_end[0])] + field + waiting[tail_at:])
    start = np.array([0])
    set_topics(data, start, np.array([len(data)]), np.array([magic]))
    set_queue_ids(data, start, np.array([9]))
    set_prepared(data, parts.prepared_at, np.array([1 << 61]))
    assert bytes(data) == wanted


@pytest.mark.parametrize(("born_host", "store_host"), HOSTS)
@pytest.mark.parametrize("topic", TOPICS)
def test_one_and_many_are_found_at_the_same_places(topic: str, born_host: bytes, store_host: bytes) -> None:
    record = encode_record(
        topic.encode(), b"body", b"a\x01b", queue_id=0, queue_offset=0, physical_offset=0, born_timestamp_ms=5,
        born_host=born_host, store_timestamp_ms=0, store_host=store_host,
    )  # fmt: skip
    one = layout(record, 0, len(record))
    many = lay_out(Numbers(record, len(record)), np.array([0]), np.array([len(record)]))
    assert one is not None
    assert many.fits.all()
    assert (one.store_timestamp_at, one.body_at, one.topic_at, one.properties_at) == (
        many.store_timestamps_at[0], many.bodies_at[0], many.topics_at[0], many.properties_at[0],
    )  # fmt: skip


def test_the_shortest_record_is_a_head_and_two_lengths() -> None:
    record = encode_record(
        b"", b"", b"", queue_id=0, queue_offset=0, physical_offset=0, born_timestamp_ms=0, born_host=V4,
        store_timestamp_ms=0, store_host=V4,
    )  # fmt: skip
    assert len(record) == MIN_RECORD_BYTES == HEAD.size + 3
