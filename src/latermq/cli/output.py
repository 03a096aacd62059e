"""Output of commands: results go to standard output as tables or JSON lines, everything else to standard error.

Names, bodies and remarks come from other users and may contain escape sequences that terminals obey. They are escaped
unless `--raw` is given. JSON escapes the same characters.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from latermq.redaction import redacted
from latermq.visible_text import visible, visible_json

_WIDTH_WITHOUT_TERMINAL = 200  # wide enough to keep each row on one line in a pipe

Row = Mapping[str, Any]


def print_error(message: str, hint: str = "", *, excerpt: str = "") -> None:
    """Print one line that says what went wrong, and one that says what to do.

    `excerpt` has the lines in between that show the place: a line of the user's text, and a caret below it.
    """
    print(f"error: {visible(redacted(message))}", file=sys.stderr)
    for line in excerpt.splitlines():
        print(f"  {visible(redacted(line))}", file=sys.stderr)
    if hint:
        print(f"hint: {visible(hint)}", file=sys.stderr)


def print_note(text: str) -> None:
    """Print a message to the user that is not part of the result."""
    print(visible(redacted(text)), file=sys.stderr, flush=True)


def print_line(text: str, *, raw: bool = False) -> None:
    """Print one line of the result."""
    print(_printable(text) if raw else visible(text), flush=True)


def print_json(row: Row) -> None:
    print(visible_json(json.dumps(row, ensure_ascii=False, separators=(",", ":"))), flush=True)


def print_rows(
    rows: Iterable[Row], columns: Mapping[str, str], *, as_json: bool, empty: str, raw: bool = False
) -> None:
    """Print a table of the given columns (row key: heading), or each complete row as a JSON line."""
    if as_json:
        for row in rows:
            print_json(row)
        return
    table_rows = list(rows)
    if not table_rows:
        print_note(empty)
        return
    _print_table(table_rows, columns, raw=raw)


def print_fields(
    row: Row, *, as_json: bool, labels: Mapping[str, str] = MappingProxyType({}), raw: bool = False
) -> None:
    """Print the fields of one row, one per line. A field without a label is labelled with its key."""
    if as_json:
        print_json(row)
        return
    texts = {labels.get(key, key.replace("_", " ")): _text(value) for key, value in row.items()}
    width = max(map(len, texts), default=0)
    for label, text in texts.items():
        print_line(f"{label:<{width}}  {text}", raw=raw)


def counted(count: int, noun: str) -> str:
    """A count with its noun: `1 message`, `2 messages`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _print_table(rows: list[Row], columns: Mapping[str, str], *, raw: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for key, heading in columns.items():
        is_numeric = all(isinstance(row.get(key), int) and not isinstance(row.get(key), bool) for row in rows)
        table.add_column(visible(heading), justify="right" if is_numeric else "left", overflow="fold")
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
    """The text unchanged, except that lone surrogates, which no stream can encode, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


@contextlib.contextmanager
def progress(what: str, total: int | None, *, prints_rows: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error if it is a terminal. The yielded function advances it."""
    # Rows printed to the same terminal would garble the bar, and they show the progress themselves.
    if total == 1 or not sys.stderr.isatty() or (prints_rows and sys.stdout.isatty()):
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
