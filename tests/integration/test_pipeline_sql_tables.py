"""Topics and timers as tables of Spark SQL: CREATE TABLE or VIEW … USING latermq, INSERT INTO and SELECT."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from latermq.client import OutgoingMessage, blocking
from tests.interop.waiting import wait_until
from tests.support.serving import Server, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("tables") / "data") as found:
        with blocking.Admin(found.namesrv) as admin:
            wait_until(admin.brokers, 30, "the broker is registered")
        yield found


@pytest.fixture
def plain(spark: "SparkSession") -> Iterator["SparkSession"]:
    """A session with Spark's own catalog, as it is without Delta Lake."""
    from latermq import pipeline

    session = spark.newSession()
    session.conf.set("spark.sql.catalog.spark_catalog", "builtin")
    pipeline.register(session)
    yield session
    for table in session.catalog.listTables():
        session.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.name}")


def test_a_table_of_timers_is_filled_by_insert_and_read_when_they_arrive(server: Server, plain: "SparkSession") -> None:
    plain.sql(
        f"CREATE TABLE reminders USING latermq OPTIONS (Namesrv '{server.namesrv}', TOPIC 'reminders', job 'sql', "
        "mergeSchema 'true') TBLPROPERTIES ('team' = 'billing')"
    )
    assert plain.table("reminders").columns == ["key", "due", "body", "tag", "properties", "topic"]
    values = "'k' || id, current_timestamp(), 'grün ' || id, 't' FROM range(20)"
    for _ in range(2):  # the job knows its keys
        plain.sql(f"INSERT INTO reminders (key, due, body, tag) SELECT {values}")
    plain.sql("INSERT INTO reminders (due, key) VALUES (now(), 'k20')")

    def rows() -> list[tuple[str, ...]]:
        return sorted(map(tuple, plain.sql("SELECT key, body, tag FROM reminders").collect()))

    wait_until(lambda: len(rows()) >= 21, 30, "all timers are delivered")
    assert rows() == sorted([*((f"k{n}", f"grün {n}", "t") for n in range(20)), ("k20", "", None)], key=str)
    ((late,),) = plain.sql("SELECT count(*) FROM reminders WHERE due > current_timestamp()").collect()
    assert late == 0


def test_a_table_without_columns_has_those_of_its_topic(server: Server, plain: "SparkSession") -> None:
    with blocking.Producer(server.namesrv) as producer:
        producer.send(OutgoingMessage("bills", b"x" * 9_000, "t", "k"))  # so long that the client compresses it
    plain.sql(f"CREATE TABLE bills USING latermq OPTIONS (namesrv '{server.namesrv}', topic 'bills')")
    assert "body_text" in plain.table("bills").columns
    ((key, text, body),) = plain.sql("SELECT keys, body_text, body FROM bills").collect()
    assert (key, text, bytes(body)) == ("k", "x" * 9_000, b"x" * 9_000)


def test_a_view_works_next_to_deltas_catalog_too(server: Server, spark: "SparkSession") -> None:
    columns = "(key STRING, due DATE)"
    options = f"OPTIONS (namesrv '{server.namesrv}', topic 'someday', job 'view')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW someday {columns} USING latermq {options}")
    try:
        spark.sql("INSERT INTO someday SELECT 'a', DATE '2035-01-01'")
    finally:
        spark.catalog.dropTempView("someday")
    with blocking.Admin(server.namesrv) as admin:
        (timer,) = admin.pending_timers("someday")
    assert timer.due_ms == 2_051_222_400_000  # midnight in the session's zone, which is UTC


def test_a_table_in_deltas_catalog_is_refused_with_the_way_out(server: Server, spark: "SparkSession") -> None:
    options = f"OPTIONS (namesrv '{server.namesrv}', topic 'refused', job 'refused')"
    with pytest.raises(
        Exception, match=r"works only in Spark's own catalog, and .*DeltaCatalog\. Use CREATE TEMPORARY"
    ):
        spark.sql(f"CREATE TABLE refused USING latermq {options}")
    assert not spark.catalog.tableExists("refused")


def test_an_unknown_option_of_a_table_is_refused_with_the_known_ones(server: Server, plain: "SparkSession") -> None:
    with pytest.raises(Exception, match=r"unknown option: topik.*Options: namesrv, topic, broker"):
        plain.sql("CREATE TABLE t USING latermq OPTIONS (topik 'orders')")
    plain.sql("CREATE TABLE u (key STRING) USING latermq OPTIONS (topic 'later')")
    with pytest.raises(Exception, match=r"no topic is set.*leave out the columns, or create a temporary view"):
        plain.table("u").collect()


def test_times_of_every_type_are_due_in_the_zone_of_the_session(server: Server, plain: "SparkSession") -> None:
    plain.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    at = "2035-01-01 09:00:00"
    times = (f"TIMESTAMP '{at}'", f"TIMESTAMP_NTZ '{at}'", f"'{at}'", "'2035-01-01T00:00:00Z'", "DATE '2035-01-01'")
    for number, due in enumerate(times):
        rows = plain.sql(f"SELECT 'k{number}' AS key, {due} AS due")
        writer = rows.write.format("latermq").mode("append").option("job", "zones").option("topic", "zones")
        writer.option("namesrv", server.namesrv).save()
    with blocking.Admin(server.namesrv) as admin:
        found = {timer.keys: timer.due_ms for timer in admin.pending_timers("zones")}
    midnight_ms = 2_051_222_400_000
    assert found == {f"k{n}": midnight_ms - (32_400_000 if n == 4 else 0) for n in range(5)}
    assert time.time() * 1000 < midnight_ms
