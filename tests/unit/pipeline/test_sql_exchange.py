"""SQL queries of commands: frames, rows in types that MessagePack has, and streams that end when their client does."""

import datetime
import decimal
import http.client
import io
import threading
from collections.abc import Generator, Iterator
from contextlib import closing

import msgspec
import pytest

from latermq.errors import ConfigError, ServiceUnavailable, StoreError
from latermq.pipeline.query.bad_query import BadQuery
from latermq.pipeline.remote.control_server import ControlServer
from latermq.pipeline.remote.driver_address import HOST
from latermq.pipeline.remote.running_driver import DriverUnreachable, RunningDriver, SqlAnswer
from latermq.pipeline.remote.sql_exchange import (
    PATH,
    End,
    Failure,
    Frame,
    Progress,
    ResultRow,
    SqlRequest,
    encode_frame,
    failure,
    read_frames,
)
from tests.interop.waiting import wait_until

TOKEN = "f" * 64
REQUEST = SqlRequest("SELECT 1", "/data/pipeline", "127.0.0.1:9876", 11)
MOMENT = datetime.datetime(2027, 1, 1, 12, 30, tzinfo=datetime.UTC)
FRAMES: list[Frame] = [
    Progress(1, 4, 2),
    ResultRow([1, "a", None, 1.5, b"\xff", MOMENT, {"a": [1]}]),
    Failure("no", "yes", "SELECT\n^", is_mistake=True),
    End(["a"], ["store x"]),
]


class Stream:
    """A control endpoint whose queries send the given frames, and then wait until they are closed."""

    def __init__(self, *frames: Frame, waits: bool = False) -> None:
        self._frames = frames
        self._waits = waits
        self.closed = threading.Event()
        self.bodies: list[bytes] = []
        self.server = ControlServer(TOKEN, {}, {("POST", PATH): self._answer}, timeout_s=5.0)
        self.driver = RunningDriver(TOKEN, self.server.port)

    def _answer(self, body: bytes) -> Generator[bytes]:
        self.bodies.append(body)
        try:
            for frame in self._frames:
                yield encode_frame(frame)
            while self._waits:
                yield encode_frame(Progress(0, 1, 1))
                yield b""
                if self.closed.wait(0.01):
                    return
        finally:
            self.closed.set()

    def __enter__(self) -> "Stream":
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()


def test_frames_survive_the_stream() -> None:
    data = b"".join(map(encode_frame, FRAMES))
    assert list(read_frames(io.BytesIO(data))) == FRAMES
    with pytest.raises(EOFError):
        list(read_frames(io.BytesIO(data[:-1])))
    with pytest.raises(ValueError, match="a frame of 4294967295 bytes"):
        list(read_frames(io.BytesIO(b"\xff" * 10)))


def test_an_answer_has_all_rows_and_progress_is_shown() -> None:
    seen: list[Progress] = []
    rows: list[list[object]] = [[number, "x" * 100] for number in range(2_000)]  # more than one piece
    with Stream(Progress(1, 2, 1), *map(ResultRow, rows), End(["n", "x"], ["s"])) as stream:
        assert stream.driver.run_sql(REQUEST, seen.append) == SqlAnswer(["n", "x"], rows, ["s"])
    assert seen == [Progress(1, 2, 1)]
    assert msgspec.json.decode(stream.bodies[0], type=SqlRequest) == REQUEST


def test_a_mistake_keeps_its_place_and_other_failures_are_none() -> None:
    with Stream(failure(BadQuery("no", hint="yes", excerpt="SELECT\n^"))) as stream:
        with pytest.raises(BadQuery, match="no") as caught:
            stream.driver.run_sql(REQUEST)
        assert (caught.value.hint, caught.value.excerpt) == ("yes", "SELECT\n^")
    with Stream(failure(StoreError("disk full", hint="Free some"))) as stream:
        with pytest.raises(StoreError, match="disk full") as failed:
            stream.driver.run_sql(REQUEST)
        assert not isinstance(failed.value, ConfigError)


def test_an_answer_without_an_end_is_an_error_and_no_partial_result() -> None:
    with (
        Stream(ResultRow([1])) as stream,
        pytest.raises(ServiceUnavailable, match="the driver ended during the query") as caught,
    ):
        stream.driver.run_sql(REQUEST)
    assert not isinstance(caught.value, DriverUnreachable)  # no other Spark is started for it


def test_a_query_ends_with_its_client() -> None:
    with Stream(waits=True) as stream:
        connection = http.client.HTTPConnection(HOST, stream.server.port, timeout=5)
        with closing(connection):
            connection.request("POST", PATH, b"{}", {"Authorization": f"Bearer {TOKEN}"})
            answer = connection.getresponse()
            assert next(read_frames(answer)) == Progress(0, 1, 1)
            assert not stream.closed.is_set()
        answer.close()
        assert stream.closed.wait(5)
        wait_until(lambda: not stream.server.statistics()["control_connections"], 5, "the end of the exchange")


def test_a_stream_needs_the_token() -> None:
    with Stream(End([], [])) as stream:
        with pytest.raises(DriverUnreachable, match="refuses the token"):
            RunningDriver("e" * 64, stream.server.port).run_sql(REQUEST)
        assert not stream.bodies


@pytest.fixture
def quick_timeout() -> Iterator[ControlServer]:
    def slow(body: bytes) -> Generator[bytes]:
        for _ in range(8):
            threading.Event().wait(0.05)
            yield encode_frame(Progress(0, 0, 0))
            yield b""
        yield encode_frame(End([], []))

    server = ControlServer(TOKEN, {}, {("POST", PATH): slow}, timeout_s=0.2)
    server.start()
    yield server
    server.close()


def test_a_stream_may_take_longer_than_an_exchange(quick_timeout: ControlServer) -> None:
    assert RunningDriver(TOKEN, quick_timeout.port).run_sql(REQUEST) == SqlAnswer([], [], [])


def test_spark_values_become_portable() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql import Row

    from latermq.pipeline.driver.sql_service import portable

    local = MOMENT.astimezone().replace(tzinfo=None)  # as PySpark returns timestamps
    value = Row(a=1, b=[Row(due=local)], c={1: decimal.Decimal("1.5")}, d=datetime.date(2027, 1, 2))
    assert portable(value) == {"a": 1, "b": [{"due": MOMENT}], "c": {"1": 1.5}, "d": "2027-01-02"}
    assert portable(b"\xff") == b"\xff"
