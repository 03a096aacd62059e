"""Many timers at once against a real broker: scheduled from files, asked by SQL, cancelled, moved and reported."""

import datetime
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from latermq import pipeline
from latermq.client import OutgoingMessage, blocking
from latermq.errors import IllegalMessage
from latermq.handover.ingest_claim import IngestClaim, claim_path
from latermq.pipeline.bulk import shares
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.lost_entries import write_claim
from latermq.pipeline.timeline.root import Root, open_root
from tests.integration.command_line import Cli
from tests.interop.waiting import wait_until
from tests.support.pipeline.drivers import begin_as_driver, driver_link
from tests.support.serving import Server, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
NEAR_MS, FAR_MS = 20 * 60_000, 72 * HOUR_MS  # whether ingest lags or not
# So seldom that what is seen of a moment ago is seen because whoever asks has it flushed.
SETTINGS = ("store.flush_every=30s", "pipeline.enabled=true", "pipeline.ingest_every=2s")
# Due while the other tests run, for the report at the end: of thirty ten are cancelled and ten moved before.
NEW_YEAR_MS = 1_798_761_600_000
PAST, PAST_IN_MS = 30, 12_000


class Timers:
    """A broker whose far timers are kept by hand, and what a person does with it."""

    def __init__(self, server: Server, root: Root, spark: "SparkSession") -> None:
        self.namesrv = server.namesrv
        self.root = root
        self.spark = spark
        self._cli = Cli(server)
        self.now_ms = int(time.time() * 1000)
        (self.address,) = masters(server.namesrv).values()

    def run(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        return self._cli.run("pipeline", *arguments, "--timeline", self.root.uri, code=code)

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*arguments, "--json")[0].splitlines()]

    def sql(self, query: str) -> list[dict[str, Any]]:
        return self.rows("sql", query)

    def count(self, topic: str) -> int:
        with blocking.Admin(self.namesrv) as admin:
            return admin.count_timers(topic) if topic in admin.topics() else 0

    def send_what_will_be_past(self) -> None:
        due_ms = int(time.time() * 1000) + PAST_IN_MS
        with blocking.Producer(self.namesrv) as producer:
            for number in range(PAST):
                producer.send(OutgoingMessage("past", b"p", "", f"p{number}", deliver_at_ms=due_ms + number))
        with blocking.Admin(self.namesrv) as admin:
            for number in range(10):
                admin.cancel_timer("past", key=f"p{number}")
                admin.move_timer("past", key=f"p{number + 10}", due_ms=self.now_ms + FAR_MS)

    def ingest(self) -> None:
        from latermq.pipeline.driver.ingest import Ingest

        with BrokerLink(self.address) as link:
            link.state(flush=True)
        ingest = Ingest(self.spark, self.root, self.namesrv, "broker-a")
        try:
            assert ingest.start(available_now=True).awaitTermination(60)
        finally:
            ingest.close()

    def file_of(self, path: Path, count: int, topic: str, in_ms: int = FAR_MS) -> str:
        rows = [
            {"topic": topic, "body": b"body %d" % number, "due_ms": self.now_ms + in_ms + number, "key": f"k{number}",
             "tag": "even" if number % 2 == 0 else "odd", "properties": [("n", str(number))]}
            for number in range(count)
        ]  # fmt: skip
        types = {"topic": pa.string(), "body": pa.binary(), "due_ms": pa.int64(), "key": pa.string(),
                 "tag": pa.string(), "properties": pa.map_(pa.string(), pa.string())}  # fmt: skip
        pq.write_table(pa.Table.from_pylist(rows, pa.schema(list(types.items()))), path)
        return str(path)


@pytest.fixture(scope="module")
def timers(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Iterator[Timers]:
    folder = tmp_path_factory.mktemp("bulk")
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    settings += ["--set", f"pipeline.timeline={folder / 'pipeline'}"]
    with serving(folder / "data", "--no-pipeline", *settings) as server:
        with blocking.Admin(server.namesrv) as admin:
            wait_until(admin.brokers, 30, "the broker is registered")
        found = Timers(server, open_root(str(folder / "pipeline")), spark)
        with driver_link(found.address, folder / "pipeline") as link:
            begin_as_driver(link, folder / "pipeline")
            wait_until(lambda: link.state().cuts, 30, "the first cut: what is sent now may be far")
        found.send_what_will_be_past()
        yield found


def test_a_file_scheduled_twice_is_scheduled_once(timers: Timers, tmp_path: Path) -> None:
    file = timers.file_of(tmp_path / "rows.parquet", 5_000, "twice")
    (dry,) = timers.rows("schedule", file, "--job", "twice", "--dry-run")
    assert dry == {"rows": 5_000, "scheduled": 0, "repeated": 0}
    assert timers.count("twice") == 0
    first = timers.rows("schedule", file, "--job", "twice")
    assert first == [{"rows": 5_000, "scheduled": 5_000, "known": 0, "repeated": 0}]
    out, notes = timers.run("schedule", file, "--job", "twice", "--json")
    assert json.loads(out) == {"rows": 5_000, "scheduled": 0, "known": 5_000, "repeated": 0}
    assert "nothing to do: job twice has already scheduled all of these rows" in notes
    # With other partitions, and through the data source.
    rows = timers.spark.read.parquet(file).repartition(7)
    writer = rows.write.format("latermq").mode("append").option("namesrv", timers.namesrv).option("job", "twice")
    writer.option("root", timers.root.uri).save()
    assert timers.count("twice") == 5_000
    assert not list(Path(timers.root.at("bulk", "twice")).glob("spool/*"))
    (found,) = timers.sql("SELECT tags, keys, due_ms FROM pending WHERE topic = 'twice' AND keys = 'k7'")
    assert found == {"tags": "odd", "keys": "k7", "due_ms": timers.now_ms + FAR_MS + 7}
    # Under another job they are others.
    assert timers.rows("schedule", file, "--job", "again")[0]["scheduled"] == 5_000


def test_executors_schedule_a_large_job_share_by_share(
    timers: Timers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latermq import pipeline

    monkeypatch.setattr(shares, "SHARE_ROWS", 1_000)
    rows = timers.spark.read.parquet(timers.file_of(tmp_path / "rows.parquet", 3_000, "shared")).repartition(3)
    sent: list[int] = []
    job = {"root": timers.root, "namesrv": timers.namesrv, "job": "shared"}
    done = pipeline.schedule(rows.union(rows.limit(5)), **job, on_sent=sent.append)
    assert done[:3] == (3_000, 0, 5)
    assert sum(sent) == 3_005
    assert timers.count("shared") == 3_000
    keys = Path(timers.root.at("bulk", "shared", "scheduled"))
    assert len({file.name[:17] for file in keys.iterdir()}) == 4
    again = pipeline.schedule(rows, **job)  # with the known keys there are eight shares
    assert again[:3] == (0, 3_000, 0)
    assert not list(Path(timers.root.at("bulk", "shared")).glob("spool/*"))
    monkeypatch.setattr(shares, "MAX_SHARES", 1)
    with pytest.raises(IllegalMessage, match=r"job shared has 3000 rows and 300\d known keys; the limit is 1000"):
        pipeline.schedule(rows, **job)


def test_one_bad_row_in_any_partition_and_nothing_is_scheduled(timers: Timers, tmp_path: Path) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    rows = timers.spark.range(20_000, numPartitions=4).selectExpr(
        "'bad' AS topic", "encode('b', 'UTF-8') AS body", "60000000 AS delay_ms",
        "CASE WHEN id = 19990 THEN NULL ELSE concat('k', id) END AS key",
    )  # fmt: skip
    writer = rows.write.format("latermq").mode("append").option("namesrv", timers.namesrv).option("job", "bad")
    with pytest.raises((PySparkException, Py4JJavaError), match="row 4990 of partition 3: it has no key"):
        writer.option("root", timers.root.uri).save()
    assert timers.count("bad") == 0
    rows.write.parquet(str(tmp_path / "bad"))
    _, errors = timers.run("schedule", str(tmp_path / "bad"), "--job", "bad", code=1)
    assert "it has no key" in errors
    assert timers.count("bad") == 0


def test_csv_and_json_are_scheduled_with_columns_of_other_names(timers: Timers, tmp_path: Path) -> None:
    at = "2027-01-01T00:00:00+00:00"
    csv, lines = tmp_path / "rows.csv", tmp_path / "rows.json"
    csv.write_text(f"id,pay_by,note\n1,{at},first\n2,{at},second\n")
    lines.write_text('{"id": 1, "wait": 900000000, "to": {"name": "x"}, "properties": {"a": "b"}}\n')
    columns = ("--column", "key=id", "--topic", "mapped")
    done = timers.rows(
        "schedule", str(csv), "--job", "csv", *columns, "--column", "due=pay_by", "--column", "body=note"
    )
    assert done == [{"rows": 2, "scheduled": 2, "known": 0, "repeated": 0}]
    done = timers.rows(
        "schedule", str(lines), "--job", "json", *columns, "--column", "delay_ms=wait", "--column", "body=to"
    )
    assert done == [{"rows": 1, "scheduled": 1, "known": 0, "repeated": 0}]
    rows = timers.sql(
        "SELECT keys, due_ms, body_bytes FROM pending WHERE topic = 'mapped' AND body_bytes > 0 ORDER BY 3"
    )
    assert [(row["keys"], row["due_ms"]) for row in rows[:2]] == [("1", NEW_YEAR_MS), ("2", NEW_YEAR_MS)]
    assert [row["body_bytes"] for row in rows] == [len("first"), len("second"), len('{"name":"x"}')]
    csv.write_text("id,pay_by\n3,tomorrow\n")
    _, errors = timers.run("schedule", str(csv), "--job", "csv", *columns, "--column", "due=pay_by", code=1)
    assert "row 0 (key '3'): it has no due time" in errors


def test_near_and_far_timers_are_one_table_before_and_after_ingest(timers: Timers) -> None:
    with blocking.Producer(timers.namesrv) as producer:
        for number in range(6):
            due_ms = timers.now_ms + (NEAR_MS if number < 3 else FAR_MS)
            producer.send(OutgoingMessage("both", b"%d" % number, "t", f"b{number}", deliver_at_ms=due_ms))
    with blocking.Admin(timers.namesrv) as admin:
        admin.cancel_timer("both", key="b0")
        admin.cancel_timer("both", key="b3")
        admin.move_timer("both", key="b4", due_ms=timers.now_ms + FAR_MS + HOUR_MS)
    query = "SELECT keys, due_ms, record IS NOT NULL AS far, body_bytes FROM pending WHERE topic = 'both' ORDER BY keys"
    before = timers.sql(query)
    timers.ingest()
    assert timers.sql(query) == before
    assert [(row["keys"], row["far"], row["body_bytes"]) for row in before] == [
        ("b1", False, None), ("b2", False, None), ("b4", True, 1), ("b5", True, 1),
    ]  # fmt: skip
    assert before[2]["due_ms"] == timers.now_ms + FAR_MS + HOUR_MS
    rows = pipeline.pending(timers.spark, timers.root, timers.namesrv).where("topic = 'both'")
    texts = pipeline.with_bodies(rows, timers.namesrv).orderBy("keys").select("keys", "body_text").collect()
    assert [tuple(row) for row in texts] == [("b1", "1"), ("b2", "2"), ("b4", "4"), ("b5", "5")]
    kinds = timers.sql("SELECT kind, count(*) AS rows FROM timeline WHERE topic = 'both' GROUP BY kind ORDER BY kind")
    # A move is two rows: the timer at its new time, and what it takes away at the old one.
    assert kinds == [{"kind": "cancel", "rows": 2}, {"kind": "move", "rows": 2}, {"kind": "timer", "rows": 6}]
    assert timers.rows("sql", "SELECT count(*) AS rows FROM timeline", "--version", "0") == [{"rows": 0}]
    assert "topic" in timers.run("sql", "SELECT topic, count(*) FROM pending GROUP BY topic")[0]
    _, errors = timers.run("sql", "SELECT colour FROM pending", code=2)
    assert "UNRESOLVED_COLUMN" in errors


@pytest.mark.parametrize("limit", ["HELD_ENTRIES", "HELD_BYTES"])
def test_a_tail_above_a_limit_is_pulled_by_tasks_and_has_the_same_timers(
    timers: Timers, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    from latermq.pipeline.query import tails
    from latermq.pipeline.source.part_frames import read_parts

    topic = f"tail-{limit}"
    with blocking.Producer(timers.namesrv) as producer, blocking.Admin(timers.namesrv) as admin:
        for number in range(8):
            producer.send(OutgoingMessage(topic, b"x", "", f"t{number}", deliver_at_ms=timers.now_ms + FAR_MS + number))
        admin.cancel_timer(topic, key="t0")
        admin.move_timer(topic, key="t1", due_ms=timers.now_ms + FAR_MS + HOUR_MS)

    def found() -> list[tuple[str, int]]:
        rows = pipeline.pending(timers.spark, timers.root, timers.namesrv).where(f"topic = '{topic}'")
        return sorted((row["keys"], row["due_ms"]) for row in rows.select("keys", "due_ms").collect())

    held = found()
    assert len(held) == 7
    pulled: list[object] = []

    def counted(*given: Any) -> Any:
        pulled.append(given)
        return read_parts(*given)

    monkeypatch.setattr(tails, limit, 1)
    monkeypatch.setattr(tails, "read_parts", counted)
    assert found() == held
    assert pulled


def test_a_dry_run_shows_so_many_hours_and_rows_at_most(
    timers: Timers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latermq.pipeline.bulk import bulk

    for hours in range(3):
        path = timers.file_of(tmp_path / f"{hours}.parquet", 4, "shown", in_ms=FAR_MS + hours * HOUR_MS)
        timers.rows("schedule", path, "--job", f"shown-{hours}")
    monkeypatch.setattr(bulk, "HOUR_ROWS", 2)
    monkeypatch.setattr(bulk, "SAMPLE_ROWS", 5)
    shown = pipeline.preview(timers.spark, "topic = 'shown'", timers.root, timers.namesrv)
    assert (shown.rows, len(shown.by_hour), len(shown.sample)) == (12, 2, 5)
    assert shown.by_hour[0]["hour"] < shown.by_hour[1]["hour"]


def test_what_a_predicate_holds_for_is_cancelled_near_and_far(timers: Timers, tmp_path: Path) -> None:
    timers.rows("schedule", timers.file_of(tmp_path / "far.parquet", 300, "cut"), "--job", "cut-far")
    near = timers.file_of(tmp_path / "near.parquet", 100, "cut", in_ms=NEAR_MS)
    timers.rows("schedule", near, "--job", "cut-near")
    timers.ingest()
    where = "topic = 'cut' AND tags = 'odd'"
    (shown,) = timers.rows("cancel", "--where", where, "--dry-run")
    assert shown["timers"] == 200
    assert sum(row["timers"] for row in shown["by_hour"]) == 200
    assert len(shown["sample"]) == 10
    assert timers.count("cut") == 400
    (done,) = timers.rows("cancel", "--where", where, "--job", "no-odd")
    assert (done["names"], done["cancelled"], done["done_before"]) == (200, 200, 0)
    assert timers.count("cut") == 200
    assert timers.sql("SELECT tags, count(*) AS left FROM pending WHERE topic = 'cut' GROUP BY tags") == [
        {"tags": "even", "left": 200}
    ]
    # Again: the same plan, nothing left of it; and another predicate needs another job.
    (again,) = timers.rows("cancel", "--job", "no-odd")
    assert (again["names"], again["cancelled"], again["done_before"]) == (200, 200, 200)
    _, errors = timers.run("cancel", "--where", "topic = 'cut'", "--job", "no-odd", code=1)
    assert "was started as" in errors


def test_a_job_that_was_cut_short_goes_on_with_the_rest_of_its_plan(
    timers: Timers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latermq.pipeline.bulk import bulk, plan_runner
    from latermq.pipeline.timeline.root import write_file

    timers.rows("schedule", timers.file_of(tmp_path / "rows.parquet", 90, "short"), "--job", "short")
    monkeypatch.setattr(bulk, "CHUNK_ROWS", 30)
    action = bulk.BulkAction("move", "topic = 'short'", by_ms=HOUR_MS)
    assert bulk.make_plan(timers.spark, action, timers.root, timers.namesrv, "shift").rows == 90
    wrote: list[str] = []

    def dies_at_the_second(root: Root, path: str, data: bytes) -> None:
        if wrote:
            raise KeyboardInterrupt
        wrote.append(path)
        write_file(root, path, data)

    with monkeypatch.context() as patched:
        patched.setattr(plan_runner, "write_file", dies_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            bulk.resume("shift", timers.root, timers.namesrv)
    done = bulk.resume("shift", timers.root, timers.namesrv)
    # Two files are played at once, and the longest have 30 rows.
    assert (done.done_before in (15, 30), dict(done.verdicts)) == (True, {"moved": 90})
    query = "SELECT count(*) AS timers, min(due_ms) AS first FROM pending WHERE topic = 'short'"
    assert timers.sql(query) == [{"timers": 90, "first": timers.now_ms + FAR_MS + HOUR_MS}]


def test_a_plan_that_is_played_late_leaves_newer_timers_of_its_names_alone(timers: Timers) -> None:
    from latermq.pipeline.bulk import bulk

    names = [f"late-{number}" for number in range(3)]

    def send(name: str, body: bytes) -> None:
        properties = {"UNIQ_KEY": name}
        producer.send(OutgoingMessage("late", body, properties=properties, deliver_at_ms=timers.now_ms + FAR_MS))

    with blocking.Producer(timers.namesrv) as producer, blocking.Admin(timers.namesrv) as admin:
        for name in names:
            send(name, b"planned")
        action = bulk.BulkAction("cancel", "topic = 'late'")
        assert bulk.make_plan(timers.spark, action, timers.root, timers.namesrv, "late").rows == 3
        admin.cancel_timer("late", unique_key=names[0])
        send(names[0], b"newer")
        send(names[1], b"beside it")
    (done,) = timers.rows("cancel", "--job", "late")
    assert (done["cancelled"], done["replaced"]) == (1, 2)
    assert timers.count("late") == 3
    left = timers.sql("SELECT unique_key, count(*) AS timers FROM pending WHERE topic = 'late' GROUP BY 1 ORDER BY 1")
    assert [tuple(row.values()) for row in left] == [("late-0", 1), ("late-1", 2)]


def test_what_a_predicate_holds_for_is_moved_by_a_span_or_to_a_moment(timers: Timers, tmp_path: Path) -> None:
    timers.rows("schedule", timers.file_of(tmp_path / "rows.parquet", 50, "moved"), "--job", "moved")
    timers.ingest()
    (done,) = timers.rows("move", "--where", "topic = 'moved' AND tags = 'odd'", "--by", "1h")
    assert done["moved"] == 25
    (done,) = timers.rows("move", "--where", "topic = 'moved' AND tags = 'even'", "--to", "2027-01-01T00:00:00+00:00")
    assert done["moved"] == 25
    query = "SELECT tags, min(due_ms) AS first, max(due_ms) AS last, count(*) AS n FROM pending WHERE topic = 'moved'"
    odd_ms = timers.now_ms + FAR_MS + HOUR_MS
    assert timers.sql(f"{query} GROUP BY tags ORDER BY tags") == [
        {"tags": "even", "first": NEW_YEAR_MS, "last": NEW_YEAR_MS, "n": 25},
        {"tags": "odd", "first": odd_ms + 1, "last": odd_ms + 49, "n": 25},
    ]


def test_the_report_proves_what_became_of_every_timer(timers: Timers, tmp_path: Path) -> None:
    wait_until(lambda: timers.count("past") == 10, 60, "the last of them is delivered")
    timers.ingest()
    (waiting,) = timers.sql("SELECT count(*) AS timers FROM pending")
    span = ("--from", _moment(timers.now_ms), "--until", _moment(int(time.time() * 1000) - 1_000))
    (told,) = timers.rows("report", *span, "--out", str(tmp_path))
    assert told["waiting"] == waiting["timers"]
    wanted = {"scheduled": PAST, "delivered": 10, "cancelled": 10, "moved": 10, "missing": 0, "early": 0}
    assert {name: told[name] for name in wanted} == wanted
    assert told["delivered_twice"] == 0
    page = (tmp_path / "report.html").read_text()
    assert told["page"] == str(tmp_path / "report.html")
    for name, count in {"waiting": waiting["timers"], "delivered": 10, "cancelled": 10, "moved": 10}.items():
        assert f'<div id="{name}"><b>{count:,}</b>' in page
    assert "<svg" in page
    assert "http" not in page
    late = timers.spark.read.format("delta").load(f"{told['tables']}/lateness").collect()
    assert sum(row.timers for row in late) == 10
    assert {row.topic for row in late} == {"past"}
    forecast = timers.spark.read.format("delta").load(f"{told['tables']}/forecast")
    assert forecast.groupBy().sum("timers").collect()[0][0] == waiting["timers"]


def test_a_page_of_a_report_lists_the_worst_rows_and_its_tables_have_all(
    timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latermq.pipeline.report import report

    with blocking.Producer(timers.namesrv) as producer:
        for topic in ("past-1", "past-2", "past-3"):
            due_ms = int(time.time() * 1000) + 1_000
            producer.send(OutgoingMessage(topic, b"p", deliver_at_ms=due_ms))
    wait_until(lambda: all(timers.count(f"past-{number}") == 0 for number in (1, 2, 3)), 60, "their delivery")
    timers.ingest()
    for name in ("MAX_LATENESS", "WORST_SECONDS"):
        monkeypatch.setattr(report, name, 2)
    until_ms = int(time.time() * 1000) - 1_000
    made = report.make_report(timers.spark, timers.root, timers.namesrv, from_ms=timers.now_ms, until_ms=until_ms)
    lateness = timers.spark.read.format("delta").load(f"{made.folder}/lateness")
    assert (len(made.lateness), len(made.worst)) == (2, 2)
    assert lateness.count() >= 3
    worst = [row.max_ms for row in lateness.orderBy("max_ms", ascending=False).collect()][:2]
    assert sorted(row["max_ms"] for row in made.lateness) == sorted(worst)


def test_without_the_broker_of_a_store_nothing_is_answered_by_half_unless_that_is_asked_for(
    timers: Timers, tmp_path: Path
) -> None:
    timers.rows("schedule", timers.file_of(tmp_path / "rows.parquet", 100, "half"), "--job", "half")
    timers.ingest()
    # What the ingest of a broker leaves that has stopped since.
    write_claim(timers.root, "store-of-another", IngestClaim(end=997, epoch=1, broker="broker-b"))
    span = ("--from", _moment(timers.now_ms), "--until", _moment(int(time.time() * 1000) - 1_000))
    count, where = "SELECT count(*) AS timers FROM pending", ("--where", "topic = 'half'")
    try:
        for asked in (("sql", count), ("cancel", *where, "--dry-run"), ("cancel", *where, "--job", "by-half"),
                      ("move", *where, "--by", "1h"), ("report", *span)):  # fmt: skip
            _, errors = timers.run(*asked, code=1)
            assert "store store-of-another (broker broker-b)" in errors
            assert "--partial" in errors
        assert timers.count("half") == 100
        assert timers.sql("SELECT count(*) > 0 AS some FROM timeline") == [{"some": True}]  # which needs no broker
        out, errors = timers.run("sql", count, "--partial", "--json")
        assert json.loads(out)["timers"] >= 100
        assert "not included, because unavailable: store store-of-another (broker broker-b)" in errors
        (shown,) = timers.rows("cancel", *where, "--dry-run", "--partial")
        assert (shown["timers"], shown["absent"]) == (100, ["store store-of-another (broker broker-b)"])
        (told,) = timers.rows("report", *span, "--partial")
        assert (told["missing"], told["absent"]) == (0, ["store store-of-another (broker broker-b)"])
        assert "Not covered: store store-of-another" in Path(told["page"]).read_text()
    finally:
        Path(timers.root.at(claim_path("store-of-another", 1))).unlink()


def _moment(epoch_ms: int) -> str:
    return datetime.datetime.fromtimestamp(epoch_ms / 1000, datetime.UTC).isoformat()
