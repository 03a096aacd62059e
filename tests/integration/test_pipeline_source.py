"""The data source `latermq` against a real broker: tables, filters, streams and their limits."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from latermq.client import OutgoingMessage, blocking
from latermq.message.names import TIMER_TOPIC
from tests.interop.waiting import wait_until
from tests.support.serving import Server, serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = 300
TIMERS = 50
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def due_ms() -> int:
    return int(time.time() * 1000) + HOUR_MS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, due_ms: int) -> Iterator[Server]:
    """A broker with messages in a topic of four queues, and timers, one of them cancelled and one moved."""
    with serving(tmp_path_factory.mktemp("source"), "--set", "store.flush_every=30s") as server:
        with blocking.Admin(server.namesrv) as admin:
            wait_until(admin.brokers, 30, "the broker is registered")
        with blocking.Producer(server.namesrv) as producer:
            for number in range(MESSAGES):
                tag = "odd" if number % 2 else "even"
                producer.send(OutgoingMessage("orders", b"body %d" % number, tag, f"k{number}"))
            for number in range(TIMERS):
                at_ms = due_ms + number
                producer.send(OutgoingMessage("later", b"timer %d" % number, "", f"t{number}", deliver_at_ms=at_ms))
        with blocking.Admin(server.namesrv) as admin:
            assert admin.cancel_timer("later", key="t0")
            assert admin.move_timer("later", key="t1", due_ms=due_ms + 500)
        yield server


def table(spark: "SparkSession", server: Server, topic: str, **options: object) -> "DataFrame":
    reader = spark.read.format("latermq").option("namesrv", server.namesrv).option("topic", topic)
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def test_a_topic_is_a_table(spark: "SparkSession", server: Server) -> None:
    rows = table(spark, server, "orders").collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(b"body %d" % number for number in range(MESSAGES))
    row = next(row for row in rows if row.body == b"body 7")
    assert (row.topic, row.kind, row.keys, row.tags, row.due_ms, row.timer_id) == (
        "orders", "message", "k7", "odd", None, None,
    )  # fmt: skip
    assert row.broker == "broker-a"
    assert row.properties["KEYS"] == "k7"
    assert row.unique_key == row.properties["UNIQ_KEY"]
    assert row.born_ms <= row.store_ms + 1_000
    assert bytes(row.record).find(b"body 7") > 0


def test_offsets_bound_what_is_read(spark: "SparkSession", server: Server) -> None:
    start = json.dumps({"broker-a": {str(queue): 10 for queue in range(4)}})
    end = json.dumps({"broker-a": {str(queue): 12 for queue in range(3)}})
    rows = table(spark, server, "orders", startingOffsets=start, endingOffsets=end, columns="queue_id,queue_offset")
    assert rows.columns == ["queue_id", "queue_offset"]
    # A queue without an end of its own ends where it begins.
    assert sorted(map(tuple, rows.collect())) == [(queue, offset) for queue in range(3) for offset in (10, 11)]
    assert table(spark, server, "orders", startingOffsets="latest").count() == 0


def test_a_queue_is_read_in_parts_of_a_bounded_size(spark: "SparkSession", server: Server) -> None:
    rows = table(spark, server, TIMER_TOPIC, maxRowsPerPartition=10, maxBytesPerPull=1000, columns="queue_offset")
    assert rows.rdd.getNumPartitions() == 6
    assert [row.queue_offset for row in rows.orderBy("queue_offset").collect()] == list(range(TIMERS + 2))


def test_the_timer_topic_shows_timers_cancels_and_moves(spark: "SparkSession", server: Server, due_ms: int) -> None:
    rows = table(spark, server, TIMER_TOPIC).where("kind <> 'cut'").orderBy("queue_offset").collect()
    assert [row.kind for row in rows] == ["timer"] * TIMERS + ["cancel", "move"]
    assert [row.due_ms for row in rows[:TIMERS]] == [due_ms + number for number in range(TIMERS)]
    assert {row.topic for row in rows} == {"later"}
    cancel, move = rows[TIMERS:]
    assert cancel.unique_key == f"later+{rows[0].unique_key}"
    assert (move.timer_id, move.unique_key, move.due_ms, move["keys"]) == (1, rows[1].unique_key, due_ms + 500, "t1")


def test_filters_on_offsets_queues_and_due_times_are_taken_over(
    spark: "SparkSession", server: Server, due_ms: int
) -> None:
    timers = table(spark, server, TIMER_TOPIC, columns="queue_offset,kind,due_ms")
    some = timers.where("queue_offset >= 5 and queue_offset < 20")
    some = some.where(f"due_ms > {due_ms + 10} and due_ms <= {due_ms + 30}")
    assert [row.queue_offset for row in some.orderBy("queue_offset").collect()] == list(range(11, 20))
    assert "Filter (" not in some._jdf.queryExecution().executedPlan().toString()
    orders = table(spark, server, "orders", columns="broker,queue_id,queue_offset")
    of_queue = orders.where("broker = 'broker-a' and queue_id in (2, 3) and queue_offset = 4")
    assert sorted(map(tuple, of_queue.collect())) == [("broker-a", 2, 4), ("broker-a", 3, 4)]
    assert of_queue.rdd.getNumPartitions() == 2
    assert orders.where("queue_id = 99").count() == 0
    assert timers.where("due_ms is null").count() == 0
    assert timers.where(f"due_ms = {due_ms + 3} or queue_offset = 4").count() == 2


@pytest.mark.parametrize("timeline", [True, False])
def test_filters_keep_the_rows_that_spark_keeps_by_itself(
    spark: "SparkSession", server: Server, due_ms: int, timeline: bool
) -> None:
    columns = "broker,topic,queue_id,queue_offset,kind,timer_id,due_ms,unique_key,keys,tags"
    asked = table(spark, server, TIMER_TOPIC, columns=columns, timeline=timeline).where("kind <> 'cut'")
    by_spark = spark.createDataFrame(asked.collect(), asked.schema).cache()  # which hands no filter to anybody
    assert by_spark.count() == TIMERS + 2
    for predicate in (
        f"due_ms >= {due_ms + 10} AND due_ms < {due_ms + 13}",
        f"due_ms = {due_ms + 500} OR queue_offset IN (4, 5, 6)",
        f"NOT (due_ms <=> {due_ms + 3}) AND queue_offset <= 8 AND due_ms IS NOT NULL",
        f"due_ms > {due_ms + 40} AND keys LIKE 't4%' AND broker IN ('broker-a', NULL)",
        "due_ms > 9223372036854775806 OR tags IS NULL AND due_ms < -9223372036854775807",
        f"due_ms < {due_ms + 5} AND queue_id = 0 AND kind <> 'cancel'",
    ):
        found, wanted = (sorted(map(str, rows.where(predicate).collect())) for rows in (asked, by_spark))
        assert found == wanted, predicate


def test_a_stream_takes_no_more_rows_at_once_than_it_is_allowed(
    spark: "SparkSession", server: Server, tmp_path: Path
) -> None:
    stream = spark.readStream.format("latermq").options(
        namesrv=server.namesrv, topic="orders", maxRowsPerTrigger="70", columns="body"
    )
    taken: list[list[bytes]] = []
    query = (
        stream.load()
        .writeStream.foreachBatch(lambda rows, _: taken.append([bytes(row.body) for row in rows.collect()]))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert [len(rows) for rows in taken] == [70, 70, 70, 70, 20]
    assert len({body for rows in taken for body in rows}) == MESSAGES


def test_a_stream_adds_nothing_to_what_all_streams_share(spark: "SparkSession", server: Server, tmp_path: Path) -> None:
    """Spark adds to a map without care for others that do the same: two streams that start together would break it."""
    from latermq.pipeline.source import register

    def shared() -> dict[str, str]:
        sources = spark._jsparkSession.sessionState().dataSourceManager()
        return dict(sources.lookupDataSource("latermq").dataSourceCls().envVars())

    register(spark)
    before = shared()
    stream = spark.readStream.format("latermq").options(namesrv=server.namesrv, topic="orders", columns="body").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert query.trigger(availableNow=True).start().awaitTermination(60)
    assert shared() != before, "Spark sets nothing there any more: the placeholders can go"
    assert shared().keys() == before.keys()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": ""}, "no topic is set"),
        ({"columns": "offset"}, "unknown column: offset"),
        ({"startingoffsets": "first"}, "option startingOffsets is 'first'"),
        ({"rows": "3"}, "unknown option: rows"),
        ({"maxRowsPerPartition": "0"}, "option maxRowsPerPartition is '0'"),
        ({"topic": "no-such-topic"}, "no-such-topic"),
        ({"namesrv": "127.0.0.1:1"}, "no name server answers"),
    ],
)
def test_options_that_cannot_be_are_refused_with_a_reason(
    spark: "SparkSession", server: Server, options: dict[str, str], said: str
) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=said):
        spark.read.format("latermq").options(**{"namesrv": server.namesrv, "topic": "orders", **options}).load().count()
