"""Deliveries, as recorded in the topics: each delivered record names the entry that it replaces."""

from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from latermq.errors import LaterMQError, TopicNotFound
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC
from latermq.pipeline.driver.brokers import QueuePlace, queues_of
from latermq.pipeline.driver.known_stores import KnownBroker
from latermq.pipeline.driver.link import BrokerLink, QueueRange
from latermq.pipeline.source.options import SourceOptions
from latermq.pipeline.source.part_frames import TopicPart, read_parts
from latermq.pipeline.source.ranges import parts
from latermq.pipeline.source.records import RecordBlock

_COLUMNS = ("broker", "topic", "timer_id", "due_ms", "store_ms", "replaces_level", "replaces_entry")


class KeptRecords(NamedTuple):
    """The records that topics still hold, in parts, and the time since which none was removed; 0 if none ever was."""

    parts: list[TopicPart]
    since_ms: int


def kept_records(namesrv: str, topics: Iterable[str], brokers: Collection[str]) -> KeptRecords:
    """Query these brokers for the bounds of every queue of these topics."""
    found: list[TopicPart] = []
    since_ms = 0
    with ExitStack() as stack:
        links: dict[str, BrokerLink] = {}
        for topic in topics:
            options = SourceOptions(topic, fail_on_data_loss=False)
            for place in _places(namesrv, topic, brokers):
                if place.address not in links:
                    links[place.address] = stack.enter_context(BrokerLink(place.address))
                start, end = links[place.address].bounds(topic, place.queue_id)
                found += [TopicPart(options, part) for part in parts(place, start, end, options.max_rows_per_partition)]
                if 0 < start < end:
                    since_ms = max(since_ms, _first_stored_ms(links[place.address], topic, place.queue_id, start))
    return KeptRecords(found, since_ms)


def _places(namesrv: str, topic: str, brokers: Collection[str]) -> list[QueuePlace]:
    try:
        return [place for place in queues_of(namesrv, topic) if place.broker in brokers]
    except TopicNotFound:
        return []  # the topic was deleted, together with its deliveries


def _first_stored_ms(link: BrokerLink, topic: str, queue_id: int, start: int) -> int:
    pulled = link.pull(QueueRange(topic, queue_id, start, start + 1), max_bytes=1)
    (stored_ms,) = RecordBlock([pulled.records]).batch(("store_ms",)).slice(0, 1).column(0).to_pylist()
    return int(stored_ms)


def read_deliveries(
    spark: SparkSession, kept: KeptRecords, brokers: Sequence[KnownBroker], from_ms: int, until_ms: int
) -> DataFrame:
    """Deliveries of timers due in [from, until), to topics and to the timer dead letter topic."""
    records = read_parts(spark, kept.parts, _COLUMNS, (from_ms, until_ms))
    found = delivered_rows(records.join(F.broadcast(_stores(spark, brokers)), "broker"))
    return found.unionByName(due_in_or_unknown(dead_letters(spark, brokers), from_ms, until_ms))


def due_in_or_unknown(letters: DataFrame, from_ms: int, until_ms: int) -> DataFrame:
    """Dead letters of timers due in [from, until), and those with an unreadable record.

    Their entry identifies the timer.
    """
    due_ms = F.col("due_ms")
    return letters.where(due_ms.isNull() | ((due_ms >= from_ms) & (due_ms < until_ms)))


def delivered_rows(records: DataFrame) -> DataFrame:
    """The records of topics that are deliveries of timers."""
    deliveries = records.where((F.col("replaces_level") == 0) & F.col("replaces_entry").isNotNull())
    named = deliveries.withColumnRenamed("replaces_entry", "entry_offset").withColumn("dead", F.lit(False))
    return named.select("store_id", "entry_offset", "timer_id", "topic", "due_ms", "store_ms", "dead")


def dead_letters(spark: SparkSession, brokers: Sequence[KnownBroker]) -> DataFrame:
    """Timers that could not be delivered, from each broker's own dead letter topic, which has no route.

    Tasks pull them: after a disaster there may be as many as timers.
    """
    found: list[TopicPart] = []
    options = SourceOptions(TIMER_DEAD_LETTER_TOPIC, fail_on_data_loss=False)
    for broker in brokers:
        place = QueuePlace(broker.name, 0, broker.address)
        with BrokerLink(broker.address) as link:
            try:
                start, end = link.bounds(TIMER_DEAD_LETTER_TOPIC, 0)
            except LaterMQError as error:
                if error.retriable:
                    raise
                continue  # this broker never had a dead letter
        found += [TopicPart(options, part) for part in parts(place, start, end, options.max_rows_per_partition)]
    letters = read_parts(spark, found, _COLUMNS).join(F.broadcast(_stores(spark, brokers)), "broker")
    return delivered_rows(letters).withColumn("dead", F.lit(True))


def _stores(spark: SparkSession, brokers: Iterable[KnownBroker]) -> DataFrame:
    """The store of each broker."""
    rows = [(broker.name, broker.state.store_id) for broker in brokers]
    return spark.createDataFrame(rows, "broker string, store_id string")
