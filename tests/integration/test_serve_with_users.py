"""A server that checks users: its own processes have the inner credentials, so all of its parts work."""

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from latermq.access.inner_credentials import FILE_NAME
from latermq.access.users import INNER_USER
from latermq.cli import main
from latermq.client import Credentials, OutgoingMessage, blocking
from latermq.client.session.credentials import SECRET_FILE, USER
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.root import open_root
from latermq.pipeline.windows.attempts import read_attempt
from tests.interop.waiting import wait_until
from tests.support.http_console import HttpClient
from tests.support.needs import LONG, need_tool
from tests.support.serving import Server, serving

ROOT = Credentials("root", "r00t")
USERS = ("--set", "access.enabled=true", "--set", "access.init_user=root:r00t")
FAST = ("pipeline.near_horizon=3m", "pipeline.window=45s", "pipeline.ingest_every=1s", "store.flush_every=20ms")
AHEAD_MS = 260_000  # far with this horizon
SLOW_S = 300.0  # Spark on a busy machine


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("users")


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Server]:
    with serving(data, *USERS, grpc=True, http=True) as running:
        yield running


def test_the_broker_registers_and_topics_get_routes(server: Server) -> None:
    with blocking.Admin(server.namesrv, credentials=ROOT) as admin:
        admin.create_topic("orders", queues=1)
        assert [broker.brokerName for broker in admin.brokers()] == ["broker-a"]


def test_the_console_collects_the_state_of_the_broker(server: Server, data: Path) -> None:
    port = int(server.http.rpartition(":")[2])
    assert HttpClient(port).get("/api/v1/state").status == 401
    pair = base64.b64encode(b"root:r00t").decode()
    client = HttpClient(port, {"Authorization": f"Basic {pair}"})
    state = wait_until(lambda: (found := client.get("/api/v1/state").json).get("brokers") and found, 30, "its state")
    [broker] = state["brokers"]
    assert (broker["broker"], broker.get("error", "")) == ("broker-a", "")
    assert broker["started_ms"] > 0
    timer = client.post("/api/v1/timers", {"topic": "orders", "body": "x", "delay": "1h", "key": "k"})
    assert timer.status in (200, 201), timer.body
    wait_until(lambda: '"user":"root"' in (data / "audit" / "http.jsonl").read_text(), 10, "the line of the change")


def test_status_signs_with_the_secret_in_the_data_directory(
    server: Server, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.is_running()
    assert main(["status", "--data", str(data)]) == 0
    assert "pending timer" in capsys.readouterr().out  # which only a permitted request tells
    monkeypatch.setenv(USER, "root")
    monkeypatch.setenv("LATERMQ_SECRET", "guess")
    main(["status", "--data", str(data)])
    assert "pending timer" not in capsys.readouterr().out


def test_the_secret_is_in_no_command_line_and_no_log(server: Server, data: Path) -> None:
    secret = (data / FILE_NAME).read_text().strip()
    assert secret not in server.log()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert secret.encode() not in process.read_bytes()
        except OSError:  # it has ended
            continue


@pytest.mark.skipif(not LONG, reason="runs in the long suite")
@pytest.mark.timeout(1200)
def test_a_far_timer_goes_through_the_pipeline_and_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_tool("java", "Spark requires it")
    monkeypatch.setenv(USER, INNER_USER)
    monkeypatch.setenv(SECRET_FILE, str(tmp_path / "data" / FILE_NAME))
    options = [word for setting in FAST for word in ("--set", setting)]
    with serving(tmp_path / "data", *USERS, *options, pipeline=True) as server, BrokerLink(server.broker) as link:

        def takes_far_timers() -> bool:
            cuts = link.state().cuts
            return bool(cuts) and cuts[-1].frontier_ms < now_ms() + AHEAD_MS - 20_000

        wait_until(takes_far_timers, SLOW_S, "a pipeline that keeps up")
        with blocking.Producer(server.namesrv, credentials=ROOT) as producer:
            due_ms = now_ms() + AHEAD_MS
            producer.send(OutgoingMessage("later", b"far", deliver_at_ms=due_ms))

        def played() -> int:
            state = link.state()
            root = open_root(str(tmp_path / "data" / "pipeline"))
            chosen = [(window.number, window.attempt) for window in state.windows if window.attempt]
            return sum(read_attempt(root, state.store_id, *one).manifest.rows for one in chosen)

        wait_until(played, SLOW_S, "a window with it")
        with blocking.PullConsumer(server.namesrv, group="readers", credentials=ROOT) as consumer:

            def delivered() -> list[bytes]:
                found = [consumer.pull(queue, 0) for queue in consumer.queues("later")]
                return [message.body for one in found for message in one.messages]

            wait_until(lambda: delivered() == [b"far"], SLOW_S, "its delivery")
        assert now_ms() >= due_ms
        assert "NoPermission" not in server.log()
        assert "username cannot be null" not in server.log()
