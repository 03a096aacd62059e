"""What a page is: its place in the navigation, its rows of the route table, and what a row receives and returns."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.datastructures import ImmutableMultiDict, QueryParams

from latermq.http.console.api_calls import ApiCalls
from latermq.http.console.calls_as_code import Servers
from latermq.http.security.roles import Identity, Role


@dataclass(frozen=True)
class Visit:
    """A request for a page."""

    path: Mapping[str, str]  # the parameters in the path
    query: QueryParams
    form: ImmutableMultiDict[str, str]  # the fields of a submitted form
    identity: Identity
    api: ApiCalls  # the HTTP API, with the rights of the visitor
    now_ms: int
    servers: Servers  # as the visitor's own programs reach them
    browser_zone: str = ""  # the chosen time zone, as the browser remembers it

    @property
    def zone(self) -> str:
        """The time zone that the visitor has chosen, in which times in forms are meant and calendars are drawn."""
        return self.form.get("zone", "") or self.query.get("zone", "") or self.browser_zone or "UTC"


@dataclass(frozen=True)
class View:
    """An answer: a template and what it shows. `title` is that of the window."""

    template: str
    shown: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    status: HTTPStatus = HTTPStatus.OK


class Redirect(NamedTuple):
    """An answer to a change: the page to show next. `done` is a key of the page's `notes`."""

    path: str
    done: str = ""


Handler = Callable[[Visit], Awaitable[View | Redirect]]


class PageRow(NamedTuple):
    """One row of the route table. `role` is by default viewer for GET and operator for others."""

    method: str
    path: str
    handler: Handler
    role: Role | None = None


@dataclass(frozen=True)
class Page:
    """A page: its name in the navigation, and its rows. The first row is where the navigation leads."""

    name: str
    rows: Sequence[PageRow]
    # Paths of the API without which the page shows nothing. The navigation leaves it out for those who may not.
    needs: Sequence[str] = ()
    notes: Mapping[str, str] = field(default_factory=dict)  # what is said after a change, by key
    # Paths that show every state of the page without a cluster's data, for tests that visit all pages.
    examples: Sequence[str] = ()

    @property
    def path(self) -> str:
        """Where the navigation leads."""
        return self.rows[0].path
