"""How commands talk: results on standard output as tables or JSON lines, all else on standard error.

Names, bodies and remarks come from others, so nothing is printed as it came unless `--raw` asks for it: terminals
obey escape sequences. JSON has escapes of its own for the same characters.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from latermq.redaction import redacted
from latermq.visible_text import visible, visible_json

_WIDTH_WITHOUT_TERMINAL = 200  # wide enough that a pipe gets each row on one line

Row = Mapping[str, Any]


def print_error(message: str, hint: str = "") -> None:
    """One line of what went wrong, one of what to do."""
    print(f"error: {visible(redacted(message))}", file=sys.stderr)
    if hint:
        print(f"hint: {visible(hint)}", file=sys.stderr)


def print_note(text: str) -> None:
    """Something the person should know that is no result."""
    print(visible(redacted(text)), file=sys.stderr, flush=True)


def print_line(text: str, *, raw: bool = False) -> None:
    """One line of a result."""
    print(_printable(text) if raw else visible(text), flush=True)


def print_json(row: Row) -> None:
    print(visible_json(json.dumps(row, ensure_ascii=False, separators=(",", ":"))), flush=True)


def print_rows(
    rows: Iterable[Row], columns: Mapping[str, str], *, as_json: bool, empty: str, raw: bool = False
) -> None:
    """A table of the given columns (key of the row: heading), or each whole row as a JSON line."""
    if as_json:
        for row in rows:
            print_json(row)
        return
    listed = list(rows)
    if not listed:
        print_note(empty)
        return
    _print_table(listed, columns, raw=raw)


def print_fields(row: Row, *, as_json: bool, raw: bool = False) -> None:
    """One thing with all its fields, one a line."""
    if as_json:
        print_json(row)
        return
    width = max(map(len, row), default=0)
    for key, value in row.items():
        print_line(f"{key.replace('_', ' '):<{width}}  {_text(value)}", raw=raw)


def _print_table(rows: list[Row], columns: Mapping[str, str], *, raw: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for key, heading in columns.items():
        numeric = all(isinstance(row.get(key), int) for row in rows)
        table.add_column(visible(heading), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        texts = (_text(row.get(key)) for key in columns)
        table.add_row(*(_printable(text) if raw else visible(text) for text in texts))
    width = None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
    Console(width=width, highlight=False, markup=False, emoji=False).print(table)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={entry}" for key, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


def _printable(text: str) -> str:
    """As it came, but for halves of surrogate pairs, which no stream takes."""
    return text.encode("utf-8", "backslashreplace").decode()


@contextlib.contextmanager
def progress(what: str, total: int | None, *, prints_rows: bool) -> Iterator[Callable[[int], None]]:
    """A bar on standard error for long work, where a person watches; the yielded call advances it."""
    # Rows on the same terminal would tear the bar, and show the progress themselves.
    if total == 1 or not sys.stderr.isatty() or (prints_rows and sys.stdout.isatty()):
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
