"""Requests that make long tables in slices: few at a time, the others wait and are answered all the same."""

from collections.abc import Callable
from itertools import islice
from typing import cast

from latermq.protocol.remoting.frames import Command
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.sliced_requests import MAX_TABLES, Reply, SlicedRequests, Slices
from latermq.timer.steps import Steps
from tests.support.admins import FakeConnection

STEPS = 1_000  # several slices


class WorkingConnection(FakeConnection):
    """Counts nothing of what is under way."""

    def begin_work(self) -> None: ...

    def end_work(self) -> None: ...


class Scene:
    """A handler of tables, and a loop whose turns a test makes."""

    def __init__(self) -> None:
        self.works: list[Callable[[], None]] = []
        self.begun = self.ended = self.most_at_once = 0
        self.handler = SlicedRequests(0, self.works.append).handler(self._table, Slices.TABLE)

    def _table(self, connection: Connection, command: Command, __: None) -> Steps[Reply]:
        asked = command.body
        yield
        self.begun += 1
        self.most_at_once = max(self.most_at_once, self.begun - self.ended)
        for _ in range(STEPS if asked == b"wide" else 1):
            yield
        self.ended += 1
        return b"reply"

    def ask(self, body: bytes) -> Reply:
        connection = cast(Connection, WorkingConnection())
        command = Command(1, flag=2, body=body)
        reply = self.handler(connection, command, None)
        if reply is None:
            command.release()  # as the broker's service does
        return reply

    def run(self) -> None:
        while self.works:
            self.works.pop(0)()


def test_few_tables_are_made_at_a_time_and_all_in_the_end() -> None:
    scene = Scene()
    for _ in range(50):
        assert scene.ask(b"wide") is None
    scene.run()
    assert scene.ended == 50
    assert scene.most_at_once <= MAX_TABLES


def test_a_short_table_is_answered_at_once_where_nobody_is_before_it() -> None:
    scene = Scene()
    assert scene.ask(b"short") == b"reply"
    assert not scene.works


def test_a_table_that_is_given_up_makes_room() -> None:
    sliced = SlicedRequests(0)
    connection, command = cast(Connection, FakeConnection()), Command(1)

    def table(_: Connection, __: Command, ___: None) -> Steps[Reply]:
        yield
        yield
        return None

    few = sliced._limit_tables(table)
    for _number in range(3 * MAX_TABLES):
        steps = few(connection, command, None)
        next(steps)
        steps.close()
    assert len(list(islice(few(connection, command, None), 100))) == 1
