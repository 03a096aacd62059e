"""Lists that a page has as a whole: narrowed by a part of the name, and shown in pages."""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

from latermq.http.console.page import Visit

ROWS = 50

T = TypeVar("T")


class Listing(NamedTuple, Generic[T]):
    """One page of a list, with its address and those of its neighbours, empty if there is none."""

    rows: Sequence[T]
    name: str  # the part of the name that was asked for
    first: int  # the number of the first row, from 1
    matching: int
    total: int
    here: str
    before: str
    after: str


def listing(visit: Visit, rows: Sequence[T], name_of: Callable[[T], str], path: str) -> Listing[T]:
    """Return the rows that a visitor asked for with the parameters `name` and `page`."""
    name = visit.query.get("name", "").strip()
    matching = [row for row in rows if name.lower() in name_of(row).lower()] if name else rows
    pages = max(1, -(-len(matching) // ROWS))
    wanted = visit.query.get("page", "")
    # Of a list that has become shorter, the last page is shown.
    page = min(max(int(wanted), 1), pages) if wanted.isascii() and wanted.isdigit() and len(wanted) < 9 else 1

    def address(number: int) -> str:
        kept = {key: value for key, value in visit.query.items() if key not in ("page", "done") and value}
        return f"{path}?{urlencode(kept | {'page': number})}"

    begin = (page - 1) * ROWS
    return Listing(
        matching[begin : begin + ROWS],
        name,
        begin + 1,
        len(matching),
        len(rows),
        address(page),
        address(page - 1) if page > 1 else "",
        address(page + 1) if page < pages else "",
    )
