"""Commands and programs use the running driver: what they print, whom it refuses, and what happens when it dies."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from latermq.client import OutgoingMessage, blocking
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.remote.driver_address import read_address
from tests.interop.ports import free_port
from tests.interop.waiting import wait_until
from tests.support.metrics_scrape import scrape
from tests.support.needs import need_tool
from tests.support.pipeline.pipeline_process import PipelineProcess, pipeline_process
from tests.support.serving import Server, children_of, command_line, serving

pytestmark = pytest.mark.timeout(1800)

FAST = ("pipeline.ingest_every=1s", "store.flush_every=20ms", "pipeline.enabled=true")
SLOW_S = 600.0
NO_DRIVER = "starting Spark for this command"
HOUR_MS = 3_600_000
TIMERS = 20


@dataclass
class Scene:
    """A broker with a few timers, and a driver."""

    server: Server
    driver: PipelineProcess
    folder: Path
    metrics_port: int

    @property
    def address_file(self) -> Path:
        return self.folder.with_name("pipeline.connect")

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a process of its own, without any option that tells where the timeline or the driver is."""
        return self.python("-m", "latermq", *words, **environment)

    def python(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LATERMQ_PIPELINE")}
        own = {"NAMESRV_ADDR": self.server.namesrv, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1", **environment}
        command = [sys.executable, *words]
        return subprocess.run(command, env=kept | own, capture_output=True, text=True, timeout=SLOW_S, check=False)


def _options() -> Sequence[str]:
    return [word for setting in FAST for word in ("--set", setting)]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    need_tool("java", "Spark requires it")
    folder = tmp_path_factory.mktemp("connect") / "data" / "pipeline"
    options = [*_options(), "--set", f"pipeline.timeline={folder}"]
    with serving(folder.parent, *options) as server:
        with blocking.Producer(server.namesrv) as producer:
            now_ms = time.time_ns() // 1_000_000
            for number in range(TIMERS):
                producer.send(
                    OutgoingMessage("later", b"x", keys=f"k{number}", deliver_at_ms=now_ms + HOUR_MS * (number + 1))
                )
        port = free_port()
        with pipeline_process(
            server.namesrv, folder, *_options(), environment={"LATERMQ_METRICS_PIPELINE_PORT": str(port)}
        ) as driver:
            driver.wait_for("latermq ready", SLOW_S)
            with BrokerLink(server.broker) as link:
                wait_until(lambda: link.state().ingest_offset >= TIMERS, SLOW_S, "the ingest of the timers")
            yield Scene(server, driver, folder, port)


def test_commands_use_the_driver_and_print_nothing_else(scene: Scene) -> None:
    counted = scene.run("pipeline", "sql", "SELECT count(*) AS timers FROM pending", "--json")
    assert (counted.returncode, counted.stderr) == (0, "")
    assert json.loads(counted.stdout) == {"timers": 20}

    preview = scene.run("pipeline", "cancel", "--where", "keys = 'k3'", "--dry-run", "--json")
    assert json.loads(preview.stdout)["timers"] == 1, preview.stderr
    assert preview.stderr == ""

    cancelled = scene.run("pipeline", "cancel", "--where", "keys = 'k19'", "--json")
    assert json.loads(cancelled.stdout)["cancelled"] == 1, cancelled.stderr
    moved = scene.run("pipeline", "move", "--where", "keys = 'k18'", "--by", "1h", "--json")
    assert json.loads(moved.stdout)["moved"] == 1, moved.stderr
    assert NO_DRIVER not in cancelled.stderr + moved.stderr


def test_rows_of_a_file_are_scheduled_through_the_driver(scene: Scene, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("id,delay_ms\n" + "".join(f"{number},{HOUR_MS * 50}\n" for number in range(30)))
    words = (
        "pipeline",
        "schedule",
        str(rows),
        "--job",
        "reminders",
        "--topic",
        "later",
        "--column",
        "key=id",
        "--json",
    )
    first, second = scene.run(*words), scene.run(*words)
    assert json.loads(first.stdout)["scheduled"] == 30, first.stderr
    assert json.loads(second.stdout)["scheduled"] == 0, second.stderr
    assert NO_DRIVER not in first.stderr + second.stderr


def test_the_status_shows_driver_brokers_and_timeline(scene: Scene) -> None:
    def status() -> dict[str, Any]:
        shown = scene.run("pipeline", "status", "--json")
        assert shown.returncode == 0, shown.stderr
        found: dict[str, Any] = json.loads(shown.stdout)
        return found

    found = wait_until(lambda: (one := status())["brokers"][0]["lag_entries"] == 0 and one, SLOW_S, "the ingest")
    [broker] = found["brokers"]
    assert (broker["epoch"], broker["error"], broker["keeps_far_timers"]) == (1, "", False)
    [feed] = found["driver"]["brokers"]
    assert (feed["broker"], feed["epoch"], feed["error"]) == (broker["broker"], 1, "")
    assert found["driver"]["connect_port"] > 0
    assert found["tables"][0]["files"] > 0
    assert found["stores"] == {broker["store_id"]: broker["broker"]}
    assert found["is_good"]
    text = scene.run("pipeline", "status", "--check")
    assert (text.returncode, text.stderr) == (0, "")
    assert f"Spark Connect at localhost:{found['driver']['connect_port']}" in text.stdout
    metrics = scrape(scene.metrics_port)
    assert metrics.value("latermq_driver_brokers") == 1
    assert metrics.values("latermq_driver_stalled", "broker") == {broker["broker"]: 0}


def test_a_report_is_made_by_the_driver(scene: Scene, tmp_path: Path) -> None:
    made = scene.run("pipeline", "report", "--out", str(tmp_path), "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["missing"] == 0
    assert (tmp_path / "report.html").is_file()
    assert NO_DRIVER not in made.stderr


@pytest.mark.parametrize(
    ("query", "error", "caret"),
    [
        ("SELECT tpic FROM pending", "`tpic` cannot be resolved", "         ^"),
        ("SELECT topic FROM pending ORDER BY", "Syntax error", ""),
        ("SELECT topic FROM orders", "there is no table orders", "                    ^"),
        ("SELECT reflect('java.lang.System', 'exit', 3)", "function reflect is not allowed", ""),
        ("SELECT * FROM csv.`/etc/passwd`", "there is no table csv./etc/passwd", ""),
        ("WITH a AS (SELECT 1) INSERT INTO pending SELECT * FROM a", "does more than read", ""),
    ],
)
def test_a_mistake_is_one_line_with_its_place(scene: Scene, query: str, error: str, caret: str) -> None:
    refused = scene.run("pipeline", "sql", query)
    assert refused.returncode == 2, refused.stderr
    lines = refused.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert error in lines[0]
    assert len(lines) <= 4, refused.stderr
    if caret:
        assert lines[1:3] == [f"  {query}", caret]


def test_a_wrong_predicate_or_column_is_refused_before_anything_happens(scene: Scene, tmp_path: Path) -> None:
    refused = scene.run("pipeline", "cancel", "--where", "tpic = 'a'", "--dry-run")
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[1:3] == ["  tpic = 'a'", "  ^"]
    for words in (["--column", "kee=id"], ["--column", "key=reflect('a', 'b')"], ["--column", "key='a"]):
        refused = scene.run("pipeline", "schedule", str(tmp_path), "--job", "j", *words)
        assert refused.returncode == 2, refused.stderr
        assert NO_DRIVER not in refused.stderr


def test_a_notebook_knows_the_views_and_the_data_source(scene: Scene) -> None:
    program = """
import json, latermq.pipeline as pipeline
spark = pipeline.connect()
counts = {view: spark.table(view).count() for view in ("pending", "timeline")}
counts["again"] = pipeline.pending(spark).count()
read = spark.read.format("latermq").option("topic", "rmq_sys_wheel_timer").load()
counts["source"] = read.where("kind = 'timer'").count()
counts["token"] = spark.conf.get("spark.connect.authenticate.token", "none")
print(json.dumps(counts))
spark.stop()
"""
    done = scene.python("-c", program)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["pending"] == counts["again"] >= 19
    assert counts["timeline"] >= 20
    assert counts["source"] >= 20
    assert counts["token"] == "none"


def test_a_notebook_streams_rows_into_timers(scene: Scene, tmp_path: Path) -> None:
    """`writeStream` runs in the driver: its folders are the driver's, and the query belongs to the session."""
    (tmp_path / "in").mkdir()
    for part in range(2):
        (tmp_path / "in" / f"{part}.json").write_text("\n".join(json.dumps({"key": f"{part}-{n}"}) for n in range(50)))
    program = """
import json, sys
import latermq.pipeline as pipeline
from pyspark.sql import functions as F
folder = sys.argv[1]
spark = pipeline.connect()
rows = spark.readStream.schema("key string").option("maxFilesPerTrigger", 1).json(f"{folder}/in")
due = F.current_timestamp() + F.expr("INTERVAL 9 DAYS")
timers = rows.select("key", due.alias("due"), F.lit("streamed").alias("topic"))
writer = timers.writeStream.format("latermq").option("job", "notebook").option("checkpointLocation", f"{folder}/ck")
query = writer.trigger(availableNow=True).start()
print(json.dumps({"ended": query.awaitTermination(240), "error": str(query.exception())}))
spark.stop()
"""
    for _ in range(2):  # a restart has nothing to do
        done = scene.python("-c", program, str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"ended": True, "error": "None"}
        with blocking.Admin(scene.server.namesrv) as admin:
            assert admin.count_timers("streamed") == 100


def test_the_plain_url_works_with_the_token_and_no_other(scene: Scene) -> None:
    address = read_address(scene.address_file)
    assert address is not None
    program = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(f"sc://localhost:{sys.argv[1]}/;token={sys.argv[2]}").getOrCreate()
print(spark.range(3).count())
"""
    right = scene.python("-c", program, str(address.connect_port), address.token)
    assert right.stdout.strip() == "3", right.stderr
    wrong = scene.python("-c", program, str(address.connect_port), "f" * 64, GRPC_VERBOSITY="NONE")
    assert wrong.returncode != 0
    assert "UNAUTHENTICATED" in wrong.stderr


def test_the_token_is_in_no_command_line_environment_or_log(scene: Scene) -> None:
    address = read_address(scene.address_file)
    assert address is not None
    assert scene.address_file.stat().st_mode & 0o777 == 0o600
    for pid in (scene.driver.pid, *children_of(scene.driver.pid)):
        assert address.token not in " ".join(command_line(pid))
        assert address.token.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    assert address.token not in scene.driver.printed()
    assert "incubator" not in scene.driver.printed()


def test_a_dead_driver_is_replaced_by_a_spark_of_the_command_and_a_new_one_is_found(scene: Scene) -> None:
    first = read_address(scene.address_file)
    assert first is not None
    scene.driver.kill()
    assert scene.address_file.exists()
    counted = scene.run("pipeline", "sql", "SELECT count(*) AS timers FROM pending", "--json")
    assert json.loads(counted.stdout)["timers"] >= 19, counted.stderr
    assert len(counted.stderr.splitlines()) == 1, counted.stderr
    assert NO_DRIVER in counted.stderr
    assert "the driver does not answer" in counted.stderr
    status = scene.run("pipeline", "status", "--json")
    assert "the driver does not answer" in json.loads(status.stdout)["driver_absent"]
    assert scene.run("pipeline", "status", "--check").returncode == 1

    with pipeline_process(scene.server.namesrv, scene.folder, *_options()) as driver:
        driver.wait_for("latermq ready", SLOW_S)
        second = wait_until(lambda: read_address(scene.address_file), SLOW_S, "the new address")
        assert second.token != first.token
        counted = scene.run("pipeline", "sql", "SELECT count(*) AS timers FROM pending", "--json")
        assert json.loads(counted.stdout)["timers"] >= 19, counted.stderr
        assert counted.stderr == ""
    assert not scene.address_file.exists()
