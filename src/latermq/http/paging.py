"""How many rows an answer has."""

from latermq.errors import InvalidParameter

DEFAULT_ROWS = 100


def page_limit(wanted: int | None, max_page: int) -> int:
    """Return the number of rows of an answer; raises InvalidParameter if a client wants too many."""
    if wanted is None:
        return min(DEFAULT_ROWS, max_page)
    if wanted > max_page:
        raise InvalidParameter(f"limit is {wanted}, the limit of http.max_page is {max_page}", hint="Use the cursor")
    return wanted
