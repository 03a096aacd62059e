"""Untrusted clients that claim to be the pipeline's driver: the broker accepts only requests signed with its secret."""

import shutil
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from latermq.client.session.failures import error_from_wire
from latermq.errors import LaterMQError, NoPermission
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline_secret import Recipient, load_or_create_secret, load_secret
from latermq.protocol.remoting.codes import Request, Response
from tests.integration.command_line import Cli
from tests.security.attacker import attacking
from tests.support.pipeline.drivers import begin_as_driver, driver_link
from tests.support.serving import Server, serving

FAR = ("--set", "pipeline.enabled=true", "--set", "store.flush_every=20ms")
UNSIGNED = {
    Request.BEGIN_PIPELINE: {"token": "t", "tableEnd": "0", "afterEpoch": "0"},
    Request.COMMIT_INGEST: {"offset": "0", "epoch": "0"},
    Request.WINDOW_READY: {"number": "1", "attempt": "spark-1-x", "epoch": "0"},
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, *FAR) as server:
        yield server


def state_of(server: Server) -> PipelineState:
    with BrokerLink(server.broker) as link:
        return link.state(flush=True)


def test_unsigned_requests_are_refused(server: Server) -> None:
    with attacking(server.port) as attacker:
        for signature in (None, "", "0" * 64, "é", "x" * 10_000):
            for code, fields in UNSIGNED.items():
                answer = attacker.call(code, fields if signature is None else {**fields, "signature": signature})
                assert answer.code == Response.NO_PERMISSION, f"{code} was accepted: {answer.remark}"
                assert "is not signed with the secret of broker broker-a" in str(answer.remark)
        # Reads need no signature: consumers can read the same messages.
        position = {"topic": "rmq_sys_wheel_timer", "queueId": "0", "offset": "0"}
        assert attacker.call(Request.PULL_RECORDS, position).code != Response.NO_PERMISSION
    assert state_of(server).epoch == 0


def test_unsigned_requests_neither_replace_the_driver_nor_commit_for_it(server: Server, tmp_path: Path) -> None:
    root = tmp_path / "pipeline"
    with driver_link(server.broker, root) as link:
        epoch = begin_as_driver(link, root).epoch
        Cli(server).run("send", "orders", "far", "--delay", "30d")
        end = state_of(server).flushed_entry
        assert end > 0
        with attacking(server.port) as attacker:
            for code in (Request.BEGIN_PIPELINE, Request.COMMIT_INGEST):
                attacker.call(code, {"offset": str(end), "epoch": str(epoch), "afterEpoch": str(epoch)})
        after = state_of(server)
        assert (after.epoch, after.ingest_offset) == (epoch, 0)
        link.commit_ingest(end, epoch)
        assert state_of(server).ingest_offset == end


def test_recorded_requests_cannot_be_replayed(server: Server, tmp_path: Path) -> None:
    root = tmp_path / "pipeline"
    with RecordingProxy(server.port) as (port, recorded), driver_link(f"127.0.0.1:{port}", root) as link:
        first = begin_as_driver(link, root)
        link.commit_ingest(0, first.epoch)
    secret = load_secret(tmp_path / "pipeline.secret")
    assert secret not in bytes(recorded)
    assert b"signature" in recorded
    with attacking(server.port) as attacker:
        attacker.push(bytes(recorded))
        answers = [attacker.receive() for _ in range(4)]  # states, the begin, the commit
    [begun] = [answer for answer in answers if answer.code]
    assert "expects epoch 0, but the last one is 1" in str(begun.remark)
    assert state_of(server).epoch == first.epoch


def test_requests_recorded_before_a_restore_are_refused_after_it(tmp_path: Path) -> None:
    """Store and timeline are restored together, so neither contains a trace of the time in between."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    root = data / "pipeline"
    with serving(data, *FAR) as server, driver_link(server.broker, root) as link:
        epoch = begin_as_driver(link, root).epoch
        ports = server.same_ports
    shutil.copytree(data, copy)
    with serving(data, *ports, *FAR) as server:
        Cli(server).run("send", "orders", "ingested", "--delay", "30d")
        end = state_of(server).flushed_entry
        with RecordingProxy(server.port) as (port, recorded), driver_link(f"127.0.0.1:{port}", root) as link:
            link.commit_ingest(end, epoch)
        assert state_of(server).ingest_offset == end
    shutil.rmtree(data)
    copy.rename(data)
    with serving(data, *ports, *FAR) as server:
        Cli(server).run("send", "orders", "not in the timeline", "--delay", "30d")
        assert state_of(server).flushed_entry >= end
        with attacking(server.port) as attacker:
            attacker.push(bytes(recorded))
            answers = [attacker.receive() for _ in range(2)]  # the state, the commit
        assert {answer.code for answer in answers} == {Response.SUCCESS, Response.NO_PERMISSION}
        assert state_of(server).ingest_offset == 0
        with driver_link(server.broker, root) as link:  # the driver itself continues
            link.commit_ingest(end, epoch)
        assert state_of(server).ingest_offset == end


def test_a_driver_continues_after_a_restart_of_its_broker(tmp_path: Path) -> None:
    root = tmp_path / "pipeline"
    with serving(tmp_path, *FAR) as server:
        link = driver_link(server.broker, root)
        epoch = begin_as_driver(link, root).epoch
        ports = server.same_ports
    with serving(tmp_path, *ports, *FAR) as server, link:
        link.commit_ingest(0, epoch)
        assert "is not signed" not in server.log()


def test_a_begin_is_logged_only_if_it_succeeds(server: Server, tmp_path: Path) -> None:
    """The broker can refuse it only after it has read the driver's folder."""
    root = tmp_path / "pipeline"
    with driver_link(server.broker, root) as link:
        state = link.state()
        for table_end, reason in ((-1, "cannot end at entry -1"), (99, "ends at entry 99")):
            with pytest.raises(LaterMQError, match=reason):
                begin_as_driver(link, root, table_end=table_end)
        assert "the timeline cannot end at entry -1" in server.log()
        assert "pipeline started" not in server.log()
        assert begin_as_driver(link, root).epoch == state.epoch + 1
        assert server.log().count("pipeline started") == 1


def test_false_values_of_a_driver_change_nothing_and_stop_no_near_timer(server: Server, tmp_path: Path) -> None:
    root = tmp_path / "pipeline"
    cli = Cli(server)
    with driver_link(server.broker, root, patience_s=0) as link:
        epoch = begin_as_driver(link, root).epoch
        cli.run("send", "orders", "near", "--delay", "2s")
        before = state_of(server)
        impossible = (-1, -(1 << 63), 1 << 31, (1 << 63) - 1)
        false_requests: list[Callable[[], object]] = []
        for number in (*impossible, before.flushed_entry + 1_000):
            false_requests.append(partial(link.commit_ingest, number, epoch))
            false_requests.append(partial(begin_as_driver, link, root, table_end=number))
        for number in impossible:
            false_requests.append(partial(link.commit_ingest, 0, number))
            false_requests.append(partial(link.window_ready, number, "spark-1-a", epoch))
        for name in ("", ".", "..", "../spark-1-a", ".hidden", "x" * 10_000, "a\0b"):
            false_requests.append(partial(link.window_ready, 1, name, epoch))
        for request in false_requests:
            with pytest.raises(LaterMQError):
                request()
        after = state_of(server)
        assert (after.epoch, after.ingest_offset, after.windows) == (epoch, 0, before.windows)
    [message] = cli.rows("consume", "orders", "--group", "g", "--count", "1", "--timeout", "20s")
    assert message["body"] == "near"


def test_a_signature_for_one_broker_is_invalid_at_another(tmp_path: Path) -> None:
    secret = load_or_create_secret(tmp_path / "shared.secret")
    shared = ("--set", f"pipeline.secret_file={tmp_path / 'shared.secret'}", *FAR)
    with serving(tmp_path / "a", *shared) as one, serving(tmp_path / "b", *shared) as other:
        with BrokerLink(one.broker, secret=secret) as link:
            begin_as_driver(link, tmp_path / "a" / "pipeline")
        with BrokerLink(other.broker, secret=secret) as link:
            begin_as_driver(link, tmp_path / "b" / "pipeline")
            state = state_of(one)
            link._recipient = Recipient(state.store_id, state.instance)
            with pytest.raises(NoPermission):
                link.commit_ingest(0, 1)
        assert state_of(other).epoch == 1


def test_the_secret_is_created_once_and_only_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.secret"
    with serving(tmp_path, *FAR) as server:
        created = path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        ports = server.same_ports
    path.chmod(0o644)
    with serving(tmp_path, *ports, *FAR) as server:
        assert path.read_bytes() == created
        assert "other users can read the pipeline's secret" in server.log()
    assert not list(tmp_path.glob("*.draft"))


def test_brokers_that_start_together_agree_on_one_secret(tmp_path: Path) -> None:
    path, found = tmp_path / "shared" / "timeline.secret", set()
    starts = threading.Barrier(8)

    def start() -> None:
        starts.wait()
        found.add(load_or_create_secret(path))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {load_secret(path)}
    assert [file.name for file in path.parent.iterdir()] == ["timeline.secret"]


def test_a_broker_without_a_secret_serves_clients_and_no_driver(tmp_path: Path) -> None:
    (tmp_path / "short.secret").write_text("short")
    with serving(tmp_path / "data", *FAR, "--set", f"pipeline.secret_file={tmp_path / 'short.secret'}") as server:
        Cli(server).run("send", "orders", "hello")
        assert "short.secret has 5 characters, it must have 32–4096" in server.log()
        for secret in (b"", b"short"):
            with BrokerLink(server.broker, secret=secret) as link, pytest.raises(NoPermission, match="has no secret"):
                begin_as_driver(link, tmp_path / "data" / "pipeline")


def test_a_driver_with_a_wrong_secret_gets_an_error(server: Server, tmp_path: Path) -> None:
    with BrokerLink(server.broker, secret=b"another" * 8) as link:
        with pytest.raises(LaterMQError, match=r"Copy the broker's pipeline.secret_file") as caught:
            begin_as_driver(link, tmp_path / "pipeline")
        assert caught.value.code == error_from_wire(Response.NO_PERMISSION, "").code
        assert not caught.value.retriable


class RecordingProxy:
    """A proxy in front of a port that records everything sent through it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._recorded = bytearray()
        self._server = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> tuple[int, bytearray]:
        self._thread = threading.Thread(target=self._forward)
        self._thread.start()
        return self._server.getsockname()[1], self._recorded

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._server.close()

    def _forward(self) -> None:
        client, _ = self._server.accept()
        with client, socket.create_connection(("127.0.0.1", self._port)) as broker:
            back = threading.Thread(target=self._pump, args=(broker, client, None))
            back.start()
            self._pump(client, broker, self._recorded)
            back.join()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, recorded: bytearray | None) -> None:
        while data := source.recv(1 << 16):
            if recorded is not None:
                recorded += data
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
