"""Filters that the data source takes over: with any of them it yields the rows that Spark itself would have kept."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import TracebackType
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from latermq.handover.cut import FOREVER_MS
from latermq.handover.ownership import Ownership
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import encode_properties
from latermq.message.record_writer import encode_record
from latermq.pipeline.driver.brokers import QueuePlace
from latermq.pipeline.driver.link import QueueRange
from latermq.pipeline.source import reader, source
from latermq.pipeline.source.options import SourceOptions
from latermq.pipeline.source.ranges import Bounds
from latermq.pipeline.source.records import COLUMN_TYPES
from tests.support.needs import LONG

HOST = bytes([127, 0, 0, 1, 0, 0, 0, 1])
FIRST, ENTRIES = 3, 12  # the first entries of a queue are gone by age
FRONTIER_MS = 1_000
LONGS = (-(1 << 63), 1 << 62, (1 << 63) - 1)
Row = dict[str, Any]


@cache
def _entry(place: QueuePlace, offset: int, *, waiting: bool) -> bytes:
    """A record of a queue: of the timer topic every kind there is, of others what was due and what never waited."""
    due_ms = offset * 200 % 1_700
    properties = {"UNIQ_KEY": f"u{offset}"} | ({"KEYS": f"k{offset}"} if offset % 3 else {})
    if waiting:
        properties |= {"REAL_TOPIC": "orders" if offset % 2 else "bills", "LMQ_DUE_MS": str(due_ms)}
        if offset % 5 == 0:
            properties |= {"TIMER_DEL_UNIQKEY": f"orders+u{offset - 1}"}
        elif offset % 5 == 1:
            properties |= {"LMQ_MOVE": "1", "LMQ_TIMER_ID": str(offset - 1)}
        elif offset == 7:
            properties |= {"TIMER_DEL_UNIQKEY": "latermq.cut", "LMQ_CUT": "1:500:0"}
        if offset == 8:  # as Apache writes them
            del properties["LMQ_DUE_MS"]
            properties["TIMER_OUT_MS"] = str(due_ms)
    elif offset % 2:
        properties |= {"LMQ_DUE_MS": str(due_ms)}
    return encode_record(
        (TIMER_TOPIC if waiting else "orders").encode(), b"body", encode_properties(properties).encode(),
        queue_id=place.queue_id, queue_offset=offset, physical_offset=9, born_timestamp_ms=1_700, born_host=HOST,
        store_timestamp_ms=1_800 + offset, store_host=HOST,
    )  # fmt: skip


class Link:
    """Stands for the connection to a broker: queues of a dozen entries."""

    def __init__(self, address: str) -> None:
        self._broker = address

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def pull_all(self, range_: QueueRange, max_bytes: int) -> Iterator[bytearray]:
        place = QueuePlace(self._broker, range_.queue_id, self._broker)
        assert FIRST <= range_.start <= range_.end <= FIRST + ENTRIES
        offsets = range(range_.start, range_.end)
        yield bytearray().join(_entry(place, offset, waiting=range_.topic == TIMER_TOPIC) for offset in offsets)


@pytest.fixture(autouse=True, scope="module")
def network() -> Iterator[None]:
    """Two brokers; a topic has two queues on each, the timer topic one."""

    def queues_of(namesrv: str, topic: str, broker: str = "") -> list[QueuePlace]:
        ids = (0,) if topic == TIMER_TOPIC else (0, 1)
        return [QueuePlace(name, queue_id, name) for name in ("broker-a", "broker-b") for queue_id in ids]

    def queue_bounds(options: SourceOptions, places: Sequence[QueuePlace], *, flush: bool) -> Bounds:
        assert flush
        return dict.fromkeys(places, (FIRST, FIRST + ENTRIES))

    def timeline_ownership(options: SourceOptions, place: QueuePlace) -> Ownership | None:
        return Ownership([(0, FOREVER_MS), (5, FRONTIER_MS)]) if options.timeline else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "queues_of", queues_of)
        patch.setattr(source, "queue_bounds", queue_bounds)
        patch.setattr(source, "timeline_ownership", timeline_ownership)
        patch.setattr(reader, "BrokerLink", Link)
        yield


def read(options: SourceOptions, filters: list[Filter]) -> tuple[list[Row], list[Filter]]:
    """The rows that the source yields, and the filters that it leaves to Spark."""
    reader = source.TopicReader(options, {name: name for name in values})
    left = list(reader.pushFilters(filters))
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["broker"], row["queue_id"], row["queue_offset"])), left


@cache
def all_rows(options: SourceOptions) -> list[Row]:
    return read(options, [])[0]


def holds(filter_: Filter, row: Row) -> bool | None:
    """What SQL makes of a filter: true, false, or NULL where it cannot tell."""
    if isinstance(filter_, Not):
        inner = holds(filter_.child, row)
        return None if inner is None else not inner
    (column,) = filter_.attribute  # type: ignore[attr-defined]
    found = row[column]
    if isinstance(filter_, IsNull | IsNotNull):
        return (found is None) == isinstance(filter_, IsNull)
    wanted = filter_.value  # type: ignore[attr-defined]
    if isinstance(filter_, EqualNullSafe):
        return bool(found == wanted)
    if isinstance(filter_, In):
        if found in wanted and found is not None:
            return True
        return None if found is None or None in wanted else False
    if found is None or wanted is None:
        return None
    return bool(_COMPARISONS[type(filter_)](found, wanted))


_COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda found, wanted: found == wanted,
    GreaterThan: lambda found, wanted: found > wanted,
    GreaterThanOrEqual: lambda found, wanted: found >= wanted,
    LessThan: lambda found, wanted: found < wanted,
    LessThanOrEqual: lambda found, wanted: found <= wanted,
    StringStartsWith: lambda found, wanted: found.startswith(wanted),
    StringEndsWith: lambda found, wanted: found.endswith(wanted),
    StringContains: lambda found, wanted: wanted in found,
}

longs = st.integers(-2, 2_000) | st.sampled_from(LONGS)
values: dict[str, st.SearchStrategy[Any]] = {
    "broker": st.sampled_from(["broker-a", "broker-b", "broker", ""]),
    "topic": st.sampled_from(["orders", "bills", "none"]),
    "queue_id": st.integers(-1, 2) | st.sampled_from([-(1 << 31), (1 << 31) - 1]),
    "queue_offset": st.integers(-1, 20) | st.sampled_from(LONGS),
    "kind": st.sampled_from(["timer", "cancel", "move", "cut", "message"]),
    "timer_id": st.integers(-1, 20),
    "due_ms": longs,
    "unique_key": st.sampled_from(["u4", "orders+u4", "u"]),
    "keys": st.sampled_from(["k4", "k", ""]),
    "store_ms": st.integers(1_800, 1_815),
    "replaces_entry": st.integers(0, 1),
}
texts = [name for name in values if COLUMN_TYPES[name] == COLUMN_TYPES["topic"]]
comparisons = st.sampled_from([EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
searches = st.sampled_from([StringStartsWith, StringEndsWith, StringContains])


def on(column: str) -> st.SearchStrategy[Filter]:
    """Every filter that Spark may ask a source to take over, on one column."""
    path, value = (column,), values[column]
    found: st.SearchStrategy[Filter] = (
        st.builds(lambda make, wanted: make(path, wanted), comparisons, value)
        | st.lists(value | st.none(), max_size=4).map(lambda wanted: In(path, tuple(wanted)))
        | st.sampled_from([IsNull(path), IsNotNull(path)])
    )
    if column in texts:
        found |= st.builds(lambda make, wanted: make(path, wanted), searches, value)
    return found


# Most of those on columns that the source knows how to narrow.
single = st.sampled_from(["due_ms", "queue_offset", "broker", "queue_id", *values]).flatmap(on)
filters = st.lists(single | single.map(Not), max_size=5)
kinds_of_reading = st.sampled_from(
    [SourceOptions("orders"), SourceOptions(TIMER_TOPIC), SourceOptions(TIMER_TOPIC, timeline=True)]
)


@settings(max_examples=2_000 if LONG else 100)  # 20 ms each
@given(kinds_of_reading, filters)
def test_pushed_filters_yield_the_rows_that_spark_would_keep(options: SourceOptions, asked: list[Filter]) -> None:
    wanted = [row for row in all_rows(options) if all(holds(one, row) for one in asked)]
    found, left = read(options, asked)
    assert [row for row in found if all(holds(one, row) for one in left)] == wanted
    # Spark does not look again at what was taken over.
    taken = [one for one in asked if one not in left]
    assert all(holds(one, row) for one in taken for row in found)


@pytest.mark.parametrize("column", ["due_ms", "queue_offset"])
def test_ranges_are_taken_over_from_spark_in_every_kind_of_reading(column: str) -> None:
    for options in (SourceOptions("orders"), SourceOptions(TIMER_TOPIC), SourceOptions(TIMER_TOPIC, timeline=True)):
        found, left = read(options, [IsNotNull((column,)), GreaterThan((column,), 5), LessThanOrEqual((column,), 900)])
        assert left == []
        assert found == [row for row in all_rows(options) if row[column] is not None and 5 < row[column] <= 900]
