"""`format("latermq")`: a topic as a table or stream that the executors pull directly, and a writer of timers."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from latermq.errors import ConfigError
from latermq.handover.ownership import Ownership
from latermq.pipeline.driver.brokers import QueuePlace, queues_of
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.source.filters import PushedFilters
from latermq.pipeline.source.options import (
    SourceOptions,
    check_catalog,
    checked_options,
    is_catalog_table,
    parse_options,
)
from latermq.pipeline.source.plain_errors import plain_errors
from latermq.pipeline.source.ranges import Bounds, QueuePart, check_queues, limit_offsets, offset_key, parts, resolve
from latermq.pipeline.source.reader import read_part
from latermq.pipeline.source.records import COLUMN_TYPES, TEXT_MAP
from latermq.pipeline.source.stream_writer import StreamTimerWriter, make_stream_writer
from latermq.pipeline.source.table_options import options_in, with_options
from latermq.pipeline.source.writer import TimerWriter, make_writer
from latermq.pipeline.timeline.ownership import ownership_of

SCHEMA: StructType = from_arrow_schema(pa.schema(list(COLUMN_TYPES.items())))
# The columns of a table that is written by INSERT INTO.
TIMER_SCHEMA: StructType = from_arrow_schema(
    pa.schema(
        [
            ("key", pa.string()),
            ("due", pa.timestamp("us", "UTC")),
            ("body", pa.string()),
            ("tag", pa.string()),
            ("properties", TEXT_MAP),
            ("topic", pa.string()),
        ]
    )
)


class LaterMQSource(DataSource):
    """Spark's entry point: the name, the schema, the readers and the writer."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "latermq"

    @plain_errors()
    def schema(self) -> StructType:
        """The columns of a topic; of a table with a job, those of timers. INSERT INTO such a table schedules them."""
        given = checked_options(self._given)
        if is_catalog_table(self._given):
            check_catalog()
            return with_options(TIMER_SCHEMA if "job" in given else self._topic_schema(), given)
        return self._topic_schema()

    def _topic_schema(self) -> StructType:
        columns = parse_options(self._given).columns or tuple(COLUMN_TYPES)
        unknown = [name for name in columns if name not in COLUMN_TYPES]
        if unknown:
            raise ConfigError(f"unknown column: {', '.join(unknown)}", hint=f"Columns: {', '.join(COLUMN_TYPES)}")
        return StructType([SCHEMA[name] for name in columns])

    @plain_errors()
    def reader(self, schema: StructType) -> "TopicReader":
        return TopicReader(parse_options(self._options(schema)), checked_columns(schema))

    @plain_errors()
    def streamReader(self, schema: StructType) -> "TopicStreamReader":
        return TopicStreamReader(parse_options(self._options(schema)), checked_columns(schema))

    @plain_errors()
    def writer(self, schema: StructType, overwrite: bool) -> TimerWriter:
        return make_writer(self._options(schema), schema, overwrite)

    @plain_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamTimerWriter:
        return make_stream_writer(self._options(schema), schema, overwrite)

    def _options(self, schema: StructType) -> dict[str, str]:
        """The options of a query, and those that the table was created with."""
        return {**options_in(schema), **{name.lower(): value for name, value in self._given.items()}}


# The columns of a table of timers that a topic names otherwise, and a body declared as text.
_NAMED_OTHERWISE = {("key", "string"): "keys", ("tag", "string"): "tags", ("body", "string"): "body_text"}


def checked_columns(schema: StructType) -> dict[str, str]:
    """The columns of a schema, each with the column of a record. Checked, because a user may have written it."""
    columns = {}
    for field in schema.fields:
        type_ = field.dataType.simpleString()
        column = _NAMED_OTHERWISE.get((field.name, type_), field.name)
        if column not in COLUMN_TYPES or SCHEMA[column].dataType.simpleString() != type_:
            known = ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in SCHEMA)
            raise ConfigError(
                f"there is no column {field.name} of type {type_}",
                hint=f"Use the option columns instead of a schema. Columns: {known}",
            )
        columns[field.name] = column
    return columns


class TopicReader(DataSourceReader):
    """A topic as it is now, for batch queries."""

    def __init__(self, options: SourceOptions, columns: Mapping[str, str]) -> None:
        self._options = options
        self._columns = columns
        self._pushed = PushedFilters()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._pushed.accept(filters)

    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        options, pushed = self._options, self._pushed
        every = queues_of(options.namesrv, options.topic, options.broker)
        for wanted in (options.starting_offsets, options.ending_offsets):
            check_queues(wanted, every)
        places = [
            place
            for place in every
            if pushed.allows("broker", place.broker) and pushed.allows("queue_id", place.queue_id)
        ]
        bounds = queue_bounds(options, places, flush=True)
        starts, ends = resolve(options.starting_offsets, bounds), resolve(options.ending_offsets, bounds)
        low, high = pushed.range_of("queue_offset")
        found: list[QueuePart] = []
        for place, (first, flushed) in bounds.items():
            start = starts[place] if options.fail_on_data_loss else max(first, starts[place])
            owned = timeline_ownership(options, place)
            found += parts(
                place, max(start, low), min(ends[place], flushed, high), options.max_rows_per_partition, owned
            )
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, QueuePart):  # Spark's placeholder if there are no parts
            return iter(())
        return _read(partition, self._columns, self._options, self._pushed.ranges.get("due_ms"))


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A topic as it grows, for streams. Offsets map `broker/queue` to the next entry to read."""

    def __init__(self, options: SourceOptions, columns: Mapping[str, str]) -> None:
        self._options = options
        self._columns = columns
        self._target: dict[str, int] | None = None
        self._last_trigger_s = -math.inf

    @plain_errors()
    def initialOffset(self) -> dict[str, int]:
        starts = resolve(self._options.starting_offsets, self._bounds())
        return {offset_key(place): start for place, start in starts.items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.max_rows_per_trigger
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    @plain_errors()
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        # A queue whose broker is unreachable keeps its offset.
        end = {**start, **(self._target if self._target is not None else self._flushed())}
        end = {key: max(high, start.get(key, 0)) for key, high in end.items()}
        if not self._is_batch_due(start, end):
            return start
        return limit_offsets(start, end, limit.max_rows) if isinstance(limit, ReadMaxRows) else end

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._flushed(flush=True)

    def reportLatestOffset(self) -> dict[str, int]:
        return self._flushed()

    @plain_errors()
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        moved = {key: (start.get(key), high) for key, high in end.items() if start.get(key) != high}
        if not moved:
            return []
        options = self._options
        places = {offset_key(place): place for place in queues_of(options.namesrv, options.topic, options.broker)}
        missing = moved.keys() - places.keys()
        if missing:
            raise ConfigError(f"queue {', '.join(sorted(missing))} is no longer registered", hint="Restart its broker")
        found: list[QueuePart] = []
        for key, (low, high) in moved.items():
            place = places[key]
            if low is None or not options.fail_on_data_loss:
                first, _ = queue_bounds(options, [place])[place]
                low = max(first, low or 0)
            found += parts(place, low, high, options.max_rows_per_partition, timeline_ownership(options, place))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, QueuePart)
        return _read(partition, self._columns, self._options)

    def _is_batch_due(self, start: dict[str, int], end: dict[str, int]) -> bool:
        """Whether to start a batch: there are enough new rows, or any after a long wait.

        Small batches cost as much as large ones.
        """
        rows = sum(high - start.get(key, 0) for key, high in end.items())
        now_s = time.monotonic()
        waited_ms = (now_s - self._last_trigger_s) * 1000
        if not rows or (
            self._target is None
            and rows < self._options.min_rows_per_trigger
            and waited_ms < self._options.max_trigger_delay_ms
        ):
            return False
        self._last_trigger_s = now_s
        return True

    def _bounds(self, *, flush: bool = False) -> Bounds:
        options = self._options
        return queue_bounds(options, queues_of(options.namesrv, options.topic, options.broker), flush=flush)

    def _flushed(self, *, flush: bool = False) -> dict[str, int]:
        return {offset_key(place): flushed for place, (_, flushed) in self._bounds(flush=flush).items()}


def _read(
    part: QueuePart, columns: Mapping[str, str], options: SourceOptions, due_ms: tuple[int, int] | None = None
) -> Iterator[pa.RecordBatch]:
    names = list(columns)
    with plain_errors():
        for batch in read_part(part, list(columns.values()), options, due_ms):
            yield batch.rename_columns(names)


def queue_bounds(options: SourceOptions, places: Sequence[QueuePlace], *, flush: bool = False) -> Bounds:
    """The first and the first unflushed entry of queues.

    With `flush`, each broker first flushes all acknowledged entries. Uses one connection per broker.
    """
    found = {}
    for address in sorted({place.address for place in places}):
        with BrokerLink(address) as link:
            if flush:
                link.state(flush=True)
            for place in places:
                if place.address == address:
                    found[place] = link.bounds(options.topic, place.queue_id)
    return dict(sorted(found.items()))


def timeline_ownership(options: SourceOptions, place: QueuePlace) -> Ownership | None:
    """The ownership of a broker's entries, if rows are read for the timeline."""
    if not options.timeline:
        return None
    with BrokerLink(place.address) as link:
        return ownership_of(link.state())
