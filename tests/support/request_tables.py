"""Request tables for tests, built from the endpoints of some handler classes, without sockets."""

from typing import Protocol

from latermq.server.remoting.endpoints import Endpoint, RequestTable
from latermq.server.remoting.sliced_requests import SlicedRequests

MAX_BODY = 1 << 20


class Subject(Protocol):
    """A class with handlers."""

    @property
    def endpoints(self) -> list[Endpoint]: ...


def table_of(*subjects: Subject, sliced: SlicedRequests | None = None) -> RequestTable:
    """A table with the endpoints of these subjects."""
    table = RequestTable(MAX_BODY, sliced if sliced is not None else SlicedRequests(1_000))
    for subject in subjects:
        table.add(subject.endpoints)
    return table
