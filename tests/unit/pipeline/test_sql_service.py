"""Queries in the driver's process: answers, mistakes with their place, cancelled queries, and how many may run."""

import datetime
import io
import time
from collections.abc import Generator
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import msgspec
import pytest

from latermq.pipeline.remote.sql_exchange import MAX_ROWS, End, Failure, Frame, Progress, ResultRow, SqlRequest
from latermq.pipeline.remote.sql_exchange import read_frames as frames_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from latermq.pipeline.driver.sql_service import SqlService

pytest.importorskip("pyspark")
pytestmark = pytest.mark.timeout(600)

ENDLESS = "SELECT count(DISTINCT id % 7) FROM range(1000000000000)"


@pytest.fixture
def queries(spark: "SparkSession") -> "SqlService":
    from latermq.pipeline.driver.sql_service import SqlService

    return SqlService(spark)


def _body(query: str, limit: int = 100) -> bytes:
    return msgspec.json.encode(SqlRequest(query, "/none", "127.0.0.1:1", limit))


def _frames(pieces: Generator[bytes]) -> list[Frame]:
    """The frames of an answer, without the progress, of which there is more under load."""
    return [one for one in frames_of(io.BytesIO(b"".join(pieces))) if not isinstance(one, Progress)]


def test_a_query_is_answered_with_its_rows(queries: "SqlService") -> None:
    found = _frames(queries.answer(_body("SELECT id, 'x' AS text FROM range(5) ORDER BY id DESC", limit=2)))
    assert found == [ResultRow([4, "x"]), ResultRow([3, "x"]), End(["id", "text"], [])]
    assert queries.statistics()["sql_queries"] == 0


def test_a_mistake_has_its_place_and_nothing_but_reading_is_allowed(queries: "SqlService") -> None:
    [unknown] = _frames(queries.answer(_body("SELECT tpic FROM range(3)")))
    assert isinstance(unknown, Failure)
    assert "`tpic` cannot be resolved" in unknown.message
    assert (unknown.excerpt, unknown.is_mistake) == ("SELECT tpic FROM range(3)\n       ^", True)
    [refused] = _frames(queries.answer(_body("DROP TABLE pending")))
    assert isinstance(refused, Failure)
    assert "only reading the tables" in refused.message
    for body in (b"{}", b"\xff", _body("SELECT 1", limit=0), _body("SELECT 1", limit=MAX_ROWS + 1)):
        [invalid] = _frames(queries.answer(body))
        assert isinstance(invalid, Failure)
    assert queries.statistics()["sql_queries"] == 0


def test_queries_end_with_their_clients_and_no_more_than_a_few_run(queries: "SqlService") -> None:
    from latermq.pipeline.driver.sql_service import MAX_QUERIES

    running = [queries.answer(_body(ENDLESS)) for _ in range(MAX_QUERIES)]
    for pieces in running:
        assert any(_tasks(piece) for piece in pieces)  # returns at the first task
    [refused] = _frames(queries.answer(_body("SELECT 1")))
    assert isinstance(refused, Failure)
    assert "runs 4 queries already" in refused.message
    for pieces in running:
        pieces.close()  # returns when the query has ended
    assert queries.statistics()["sql_queries"] == 0
    assert _frames(queries.answer(_body("SELECT 1 AS one"))) == [ResultRow([1]), End(["one"], [])]


def _tasks(piece: bytes) -> int:
    [*frames] = frames_of(io.BytesIO(piece))
    return sum(frame.total for frame in frames if isinstance(frame, Progress))


def test_rows_that_a_client_has_not_read_yet_count_as_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Spark: the driver holds these rows in memory for as long as the client reads."""
    from latermq.pipeline.driver import sql_service

    found = SimpleNamespace(
        columns=["n"], limit=lambda limit: SimpleNamespace(collect=lambda: [[n] for n in range(limit)])
    )
    monkeypatch.setattr(sql_service, "run_query", lambda *_, **__: (found, ()))
    session = MagicMock()
    session.newSession.return_value = session
    queries = sql_service.SqlService(session)
    slow = [queries.answer(_body("SELECT n")) for _ in range(sql_service.MAX_QUERIES)]
    assert all(ResultRow([0]) in _first(pieces) for pieces in slow)
    [refused] = _frames(queries.answer(_body("SELECT n")))
    assert isinstance(refused, Failure)
    for pieces in slow:
        pieces.close()
    assert queries.statistics()["sql_queries"] == 0
    assert len(_frames(queries.answer(_body("SELECT n")))) == 101


def _first(pieces: Generator[bytes]) -> list[Frame]:
    """The first frame other than progress."""
    return next(frames for piece in pieces if (frames := _frames(part for part in [piece])))


def test_a_query_that_cannot_start_leaves_its_place_to_others() -> None:
    from latermq.pipeline.driver import sql_service

    session = MagicMock()
    session.newSession.side_effect = RuntimeError("can't start new thread")
    queries = sql_service.SqlService(session)
    with pytest.raises(RuntimeError):
        list(queries.answer(_body("SELECT 1")))
    assert queries.statistics()["sql_queries"] == 0


def test_times_at_the_ends_of_the_calendar_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """In time zones where they are in the year before the first, or after the last."""
    from latermq.pipeline.driver.sql_service import portable

    for zone, text in (("UTC-8", "0001-01-01T00:00:00"), ("UTC+8", "9999-12-31T23:00:00")):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        try:
            assert portable(datetime.datetime.fromisoformat(text)) == text
        finally:
            monkeypatch.undo()
            time.tzset()
