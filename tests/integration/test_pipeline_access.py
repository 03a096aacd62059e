"""Work on timers in bulk, in Spark and on the command line, as users that may do only that, or not even that."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from latermq.client import Credentials, blocking
from latermq.client.session.credentials import SECRET, SECRET_FILE, USER
from latermq.client.session.failures import AccessRefused
from tests.integration.command_line import Cli
from tests.interop.waiting import wait_until
from tests.support.interpreted_queries import interpreted
from tests.support.needs import LONG
from tests.support.serving import Server, serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Credentials("root", "r00t")
ON = {"LATERMQ_ACCESS_ENABLED": "true", "LATERMQ_ACCESS_INIT_USER": "root:r00t"}
PUB, GET = ("Topic:orders", "Pub"), ("Cluster:*", "Get")
GRANTS = {"planner": (PUB, GET), "watcher": (GET,), "sender": (PUB,), "stranger": ()}


class Scene(NamedTuple):
    """A server that checks users, and the secrets of some."""

    server: Server
    folder: Path

    def secret(self, user: str) -> str:
        return f"{user}-7c41e09b-secret"

    def secret_file(self, name: str, secret: str) -> Path:
        path = self.folder / f"{name}.secret"
        path.touch(mode=0o600)
        path.write_text(secret)
        return path

    def create_users(self, *users: str) -> None:
        for user in users:
            file = self.secret_file(user, self.secret(user))
            self.run_as_root("user", "create", user, "--new-secret-file", str(file))
            for grant in GRANTS[user]:
                self.run_as_root("acl", "grant", user, *grant)

    def timers(self) -> int:
        with blocking.Admin(self.server.namesrv, credentials=ROOT) as admin:
            return admin.count_timers("orders")

    def run_as_root(self, *arguments: str) -> None:
        with pytest.MonkeyPatch.context() as environment:
            environment.delenv(SECRET_FILE, raising=False)
            environment.setenv(USER, ROOT.user)
            environment.setenv(SECRET, "r00t")
            Cli(self.server).run(*arguments)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("users")
    with serving(folder / "data", environment=ON) as server:
        found = Scene(server, folder)
        found.create_users(*GRANTS)
        found.run_as_root("topic", "create", "orders")
        yield found


@contextmanager
def acting_as(scene: Scene, spark: "SparkSession", user: str, secret: str = "") -> "Iterator[SparkSession]":
    """A session whose driver and workers have this user in their environment, as if the program was started with it."""
    from latermq import pipeline

    file = scene.secret_file(f"{user}-used", secret or scene.secret(user))
    variables = {USER: user, SECRET_FILE: str(file), "NAMESRV_ADDR": scene.server.namesrv}
    workers = spark.sparkContext.environment
    with pytest.MonkeyPatch.context() as environment:
        for name, value in variables.items():
            environment.setenv(name, value)
            environment.setitem(workers, name, value)
        session = spark.newSession()
        session.conf.set("spark.sql.catalog.spark_catalog", "builtin")
        pipeline.register(session)
        with interpreted(session):
            try:
                yield session
            finally:
                for table in session.catalog.listTables():
                    session.sql(f"DROP TABLE {table.name}")
    pipeline.register(spark)  # the active session again


def rows_of(spark: "SparkSession", keys: str, count: int = 3) -> "DataFrame":
    due = "current_timestamp() + INTERVAL 9 DAYS AS due"
    return spark.range(count).selectExpr("'orders' AS topic", f"'{keys}' || id AS key", "'x' AS body", due)


def write(spark: "SparkSession", job: str, **options: str) -> None:
    rows_of(spark, job).write.format("latermq").mode("append").options(job=job, **options).save()


def stream(spark: "SparkSession", folder: Path, job: str) -> None:
    (folder / job).mkdir(exist_ok=True)
    (folder / job / "1.json").write_text('{"key": "a"}\n{"key": "b"}\n{"key": "c"}\n')
    rows = spark.readStream.schema("key string").json(str(folder / job))
    timers = rows.selectExpr("'orders' AS topic", "key", "key AS body", "now() + INTERVAL 9 DAYS AS due")
    writer = timers.writeStream.format("latermq").option("checkpointLocation", str(folder / f"{job}-ck"))
    assert writer.option("job", job).trigger(availableNow=True).start().awaitTermination(120)


def insert(spark: "SparkSession", job: str) -> None:
    if not spark.catalog.tableExists(job):
        spark.sql(f"CREATE TABLE {job} USING latermq OPTIONS (topic 'orders', job '{job}')")
    due = "current_timestamp() + INTERVAL 9 DAYS"
    spark.sql(f"INSERT INTO {job} (key, due, body) SELECT '{job}' || id, {due}, 'x' FROM range(3)")


def check_refusal(text: str, user: str, resource: str) -> None:
    """The text names the user, the resource and what to do, and has no traceback."""
    assert f"User:{user} has no permission to access {resource}" in text
    assert "latermq acl grant USER Topic:orders Pub" in text
    check_is_sentence(text)


def check_is_sentence(text: str) -> None:
    assert "Traceback" not in text
    assert '.py", line' not in text
    assert "The job is retried" not in text
    assert len(text) < 1_500  # what Spark says before it names the query


def test_a_user_with_pub_on_a_topic_and_get_on_the_cluster_does_all_work_on_its_timers(
    scene: Scene, spark: "SparkSession", tmp_path: Path
) -> None:
    from latermq import pipeline

    before, cli = scene.timers(), Cli(scene.server)
    with acting_as(scene, spark, "planner") as session:
        assert pipeline.schedule(rows_of(session, "s"), job="schedule").scheduled == 3
        stream(session, tmp_path, "stream")
        insert(session, "inserted")
        assert scene.timers() == before + 9
        moved = pipeline.move(session, "keys LIKE 's%'", by_ms=1_000, job="move")
        assert (moved.rows, dict(moved.verdicts)) == (3, {"moved": 3})
        cli.run("pipeline", "cancel", "--where", "keys = 's1'", "--job", "cancel")
        assert scene.timers() == before + 8
        assert '"is_good"' in cli.text("pipeline", "status", "--json")
        check_credentials_stay(session, scene.secret("planner"), scene.server)


def test_a_user_who_may_only_send_to_a_topic_schedules_timers_for_it(
    scene: Scene, spark: "SparkSession", tmp_path: Path
) -> None:
    from pyspark.errors import AnalysisException

    (tmp_path / "rows.json").write_text('{"key": "1", "body": "x", "delay_ms": 900000000}\n')
    before, cli, root = scene.timers(), Cli(scene.server), str(tmp_path / "jobs")
    command = ("pipeline", "schedule", str(tmp_path / "rows.json"), "--timeline", root)
    with acting_as(scene, spark, "sender") as session:
        for _ in range(2):
            write(session, "only-pub", root=root)
            [done] = cli.rows(*command, "--job", "cli", "--topic", "orders")
        assert (done["scheduled"], done["known"]) == (0, 1)
        assert scene.timers() == before + 4
        rows = rows_of(session, "other").selectExpr("'bills' AS topic", "key", "body", "due")
        with pytest.raises(AnalysisException) as failed:
            rows.write.format("latermq").mode("append").options(job="other", root=root).save()
        assert "User:sender has no permission to access Topic:bills" in str(failed.value)
        shown = cli.error(*command, "--job", "cli-2", "--topic", "bills")
        assert "User:sender has no permission to access Topic:bills" in shown
    assert scene.timers() == before + 4


def check_credentials_stay(spark: "SparkSession", secret: str, server: Server) -> None:
    """The secret is in no setting of Spark, no command line of this machine, and no log line."""
    settings = [*spark.sparkContext.getConf().getAll(), *map(tuple, spark.sql("SET -v").collect())]
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    settings += dict(jvm.java.lang.System.getProperties()).items()
    assert len(settings) > 300
    assert secret not in str(settings)
    assert secret not in server.log()
    seen = 0
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes()
        except OSError:  # it has ended
            continue
        assert secret.encode() not in line
        seen += 1
    assert seen > 3


def test_a_job_that_was_refused_schedules_each_row_once_after_the_grant(
    scene: Scene, spark: "SparkSession", tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from pyspark.errors import AnalysisException, StreamingQueryException

    from latermq import pipeline

    before = scene.timers()
    with acting_as(scene, spark, "watcher") as session:
        with pytest.raises(AccessRefused) as refused:
            pipeline.schedule(rows_of(session, "w"), job="w-schedule")
        check_refusal(str(refused.value), "watcher", "Topic:orders")
        with pytest.raises(AnalysisException) as failed:
            write(session, "w-write")
        check_refusal(str(failed.value), "watcher", "Topic:orders")
        with pytest.raises(StreamingQueryException) as ended:
            stream(session, tmp_path, "w-stream")
        check_refusal(str(ended.value), "watcher", "Topic:orders")
        assert scene.timers() == before
        scene.run_as_root("acl", "grant", "watcher", *PUB)
        try:
            for _ in range(2):
                pipeline.schedule(rows_of(session, "w"), job="w-schedule")
                write(session, "w-write")
                stream(session, tmp_path, "w-stream")
        finally:
            scene.run_as_root("acl", "revoke", "watcher", PUB[0])
    assert scene.timers() == before + 9
    assert scene.secret("watcher") not in "".join(capfd.readouterr())


def test_a_refused_move_is_one_sentence_and_goes_on_after_the_grant(
    scene: Scene, spark: "SparkSession", capfd: pytest.CaptureFixture[str]
) -> None:
    from latermq import pipeline

    with acting_as(scene, spark, "planner") as session:
        pipeline.schedule(rows_of(session, "moved"), job="to-move")
    cli = Cli(scene.server)
    with acting_as(scene, spark, "watcher"):
        move = ("pipeline", "move", "--where", "keys LIKE 'moved%'", "--by", "1h", "--job", "w-move")
        shown = cli.error(*move)
        check_refusal(shown, "watcher", "Topic:orders")
        assert "ERROR Executor" not in capfd.readouterr().err  # Spark's own report of a failed task is a page
        scene.run_as_root("acl", "grant", "watcher", *PUB)
        try:
            for done_before in (0, 3):
                [done] = cli.rows("pipeline", "move", "--job", "w-move")
                assert (done["moved"], done["done_before"]) == (3, done_before)
        finally:
            scene.run_as_root("acl", "revoke", "watcher", PUB[0])


@pytest.mark.parametrize("user", ["sender", "stranger"])
def test_who_may_not_read_the_cluster_is_refused_before_spark_works(
    scene: Scene, spark: "SparkSession", user: str, tmp_path: Path
) -> None:

    (tmp_path / "rows.json").write_text('{"key": "1", "body": "x", "delay_ms": 900000000}\n')
    cli, cluster = Cli(scene.server), "Cluster:DefaultCluster"
    before = scene.timers()
    with acting_as(scene, spark, user) as session:
        for work in library_calls(session, user):
            with pytest.raises(AccessRefused) as refused:
                work()
            check_refusal(str(refused.value), user, cluster)
        for arguments in commands(tmp_path / "rows.json", user):
            check_refusal(cli.error("pipeline", *arguments), user, cluster)
    assert scene.timers() == before


def test_a_wrong_secret_and_no_user_are_named(scene: Scene, spark: "SparkSession", tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException

    from latermq import pipeline

    (tmp_path / "rows.json").write_text('{"key": "1", "body": "x", "delay_ms": 900000000}\n')
    cli = Cli(scene.server)
    with acting_as(scene, spark, "planner", "a guess") as session:
        with pytest.raises(AnalysisException) as failed:
            write(session, "guess")
        check_is_sentence(str(failed.value))
        texts = [str(failed.value)]
        for work in library_calls(session, "guess"):
            with pytest.raises(AccessRefused) as refused:
                work()
            texts.append(str(refused.value))
        texts += [cli.error("pipeline", *arguments) for arguments in commands(tmp_path / "rows.json", "guess")]
        for text in texts:
            assert f"check signature failed (user planner, {scene.server.namesrv})" in text
            assert "Check the secret and the name of the user" in text
            assert "a guess" not in text
        with pytest.MonkeyPatch.context() as environment:
            environment.delenv(USER)
            environment.delenv(SECRET_FILE)
            with pytest.raises(AccessRefused, match=r"username cannot be null.* LATERMQ_SECRET_FILE.*executorEnv"):
                pipeline.schedule(rows_of(session, "none"), job="none")


def library_calls(spark: "SparkSession", job: str) -> list[Callable[[], object]]:
    from latermq import pipeline

    return [
        lambda: pipeline.schedule(rows_of(spark, job), job=f"{job}-schedule"),
        lambda: pipeline.cancel(spark, "TRUE", job=f"{job}-cancel"),
        lambda: pipeline.move(spark, "TRUE", by_ms=1, job=f"{job}-move"),
        lambda: pipeline.pending(spark),
    ]


def commands(rows: Path, job: str) -> list[tuple[str, ...]]:
    return [
        ("schedule", str(rows), "--job", f"{job}-cli", "--topic", "orders"),
        ("cancel", "--where", "TRUE", "--job", f"{job}-cli-cancel"),
        ("move", "--where", "TRUE", "--by", "1h", "--job", f"{job}-cli-move"),
        ("sql", "SELECT count(*) FROM pending"),
        ("report",),
        ("status",),
    ]


@pytest.mark.skipif(not LONG, reason="runs in the long suite")
def test_a_report_and_a_query_need_no_right_to_a_topic(scene: Scene, spark: "SparkSession") -> None:
    cli = Cli(scene.server)
    with acting_as(scene, spark, "watcher"):
        assert cli.rows("pipeline", "sql", "SELECT count(*) AS n FROM pending")[0]["n"] == scene.timers()
        assert cli.rows("pipeline", "report")[0]["waiting"] == scene.timers()


@pytest.mark.skipif(not LONG, reason="runs in the long suite")
def test_sparks_event_log_and_output_do_not_have_the_secret(scene: Scene, tmp_path: Path) -> None:
    """A program of its own, with its secret in the environment instead of in a file."""
    import subprocess
    import sys

    program = tmp_path / "job.py"
    program.write_text(
        "from pyspark.sql import SparkSession\n"
        "from latermq import pipeline\n"
        "spark = SparkSession.builder.master('local[2]').config('spark.ui.enabled', 'true')"
        f".config('spark.eventLog.enabled', 'true').config('spark.eventLog.dir', 'file://{tmp_path}/events')"
        ".config('spark.eventLog.compress', 'false').getOrCreate()\n"
        "from urllib.request import urlopen\n"
        "pipeline.register(spark)\n"
        "rows = spark.range(3).selectExpr(\"'orders' AS topic\", \"'own' || id AS key\", \"'x' AS body\","
        ' "current_timestamp() + INTERVAL 9 DAYS AS due")\n'
        "rows.write.format('latermq').mode('append').option('job', 'own').save()\n"
        "url = spark.sparkContext.uiWebUrl\n"
        "print(urlopen(url + '/environment/').read().decode())\n"
        "print(urlopen(url + '/api/v1/applications/' + spark.sparkContext.applicationId + '/environment').read())\n"
        "spark.stop()\n"
    )
    (tmp_path / "events").mkdir()
    secret = scene.secret("planner")
    variables = {USER: "planner", SECRET: secret, "NAMESRV_ADDR": scene.server.namesrv}
    before = scene.timers()
    done = subprocess.run(
        [sys.executable, str(program)], env={**os.environ, **variables}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert scene.timers() == before + 3
    events = "".join(path.read_text() for path in (tmp_path / "events").rglob("*") if path.is_file())
    assert "SparkListenerEnvironmentUpdate" in events
    assert "Runtime Information" in done.stdout
    for text in (events, done.stdout, done.stderr):
        assert secret not in text


@pytest.mark.skipif(not LONG, reason="runs in the long suite")
@pytest.mark.timeout(1200)
def test_through_the_running_driver_a_user_changes_timers_with_its_own_rights_only(tmp_path: Path) -> None:
    import subprocess
    import sys

    settings = ("audit.flush_every=1s", "pipeline.ingest_every=1s")
    options = [word for setting in settings for word in ("--set", setting)]
    data, rows = tmp_path / "data", tmp_path / "rows.json"
    rows.write_text('{"key": "1", "body": "x", "delay_ms": 900000000}\n')
    with serving(data, *options, environment=ON, pipeline=True) as server:
        scene = Scene(server, tmp_path)
        scene.run_as_root("topic", "create", "orders")
        scene.create_users("planner", "watcher")
        wait_until(lambda: (data / "pipeline.connect").exists(), 300, "the driver")

        def run(user: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
            variables = {USER: user, SECRET_FILE: str(tmp_path / f"{user}.secret"), "NAMESRV_ADDR": server.namesrv}
            command = [sys.executable, "-m", "latermq", "pipeline", *arguments]
            return subprocess.run(
                command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300, check=False
            )

        schedule = ("schedule", str(rows), "--topic", "orders", "--job", "once")
        cancel = ("cancel", "--where", "TRUE", "--job", "all")
        for arguments, timers in ((schedule, 1), (cancel, 0)):
            before = scene.timers()
            refused = run("watcher", *arguments)
            assert refused.returncode == 1, refused.stderr
            assert "starting Spark" not in refused.stderr  # so it was the driver's
            check_refusal(refused.stderr, "watcher", "Topic:orders")
            assert scene.timers() == before
            done = run("planner", *arguments)
            assert done.returncode == 0, done.stderr
            assert scene.timers() == timers
        counts = data / "audit" / "broker-counts.jsonl"
        wait_until(lambda: '"user":"planner"' in counts.read_text(), 30, "the counts of planner's requests")
        lines = [line for line in counts.read_text().splitlines() if '"Topic:orders"' in line and '"Pub"' in line]
        assert {line.partition('"user":"')[2].partition('"')[0] for line in lines} <= {"planner", "watcher", "root"}
