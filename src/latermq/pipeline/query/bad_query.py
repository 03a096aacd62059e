"""SQL that is refused, with the place of the mistake. Imported without Spark."""

import re
from collections.abc import Sequence

from latermq.errors import ConfigError

PENDING, TIMELINE = TABLES = ("pending", "timeline")  # the tables that users may query
_MAX_EXCERPT_CHARS = 120


class BadQuery(ConfigError):
    """SQL that does not parse, names something that does not exist, or would do more than read."""

    def __init__(self, message: str, *, hint: str = "", excerpt: str = "") -> None:
        """`excerpt` has two lines: the line of the SQL with the mistake, and a caret below its place."""
        super().__init__(message, hint=hint)
        self.excerpt = excerpt


def excerpt_at(text: str, index: int) -> str:
    """The line of a text that contains an index, and a caret below that place."""
    index = max(0, min(index, len(text)))
    start = text.rfind("\n", 0, index) + 1
    end = text.find("\n", index)
    line = text[start : len(text) if end < 0 else end].rstrip("\r")
    column = index - start
    if len(line) > _MAX_EXCERPT_CHARS:  # show the surroundings only
        cut = max(0, min(column - _MAX_EXCERPT_CHARS // 2, len(line) - _MAX_EXCERPT_CHARS))
        line, column = line[cut : cut + _MAX_EXCERPT_CHARS], column - cut
    return f"{line}\n{' ' * column}^".replace("\t", " ")


_LINE_AND_COLUMN = re.compile(r"\bline (\d+),? pos (\d+)")


def place_in(message: str, text: str, starts: Sequence[int] = ()) -> int | None:
    """The index of a mistake in a text: from the contexts of Spark's error, or from the error's text."""
    for start in starts:
        if 0 <= start <= len(text):
            return start
    found = _LINE_AND_COLUMN.search(message)
    if found is None:
        return None
    lines = text.split("\n")
    number, column = int(found[1]) - 1, int(found[2])
    if number >= len(lines):
        return None
    return sum(len(line) + 1 for line in lines[:number]) + min(column, len(lines[number]))
