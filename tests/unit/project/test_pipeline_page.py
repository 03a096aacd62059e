"""docs/pipeline.md names every option and every column, with what the code says of them."""

import re
from pathlib import Path

from latermq.pipeline.source.options import READ_OPTIONS, WRITE_OPTIONS
from latermq.pipeline.source.source import SCHEMA as SOURCE_SCHEMA
from latermq.pipeline.timeline.timeline import SCHEMA as TIMELINE_SCHEMA

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "pipeline.md").read_text()


def table_after(heading: str, position: int = 0) -> list[list[str]]:
    """The cells of one of the tables below a heading, without its own two lines of head."""
    section = re.split(r"^## ", PAGE.partition(f"## {heading}\n")[2], flags=re.MULTILINE)[0]
    tables = re.findall(r"(?:^\|.*\|\n)+", section, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[position].splitlines()[2:]]


def test_every_option_is_told() -> None:
    assert {row[0].strip("`") for row in table_after("Topics as tables and streams")} == set(READ_OPTIONS)
    written = {row[0].strip("`") for row in table_after("Scheduling timers in bulk", 1)}
    assert written == {*WRITE_OPTIONS, "namesrv", "topic"}


def test_every_column_of_the_source_is_told_with_its_type() -> None:
    told = [(row[0].strip("`"), row[1]) for row in table_after("Topics as tables and streams", 1)]
    assert told == [(field.name, field.dataType.simpleString()) for field in SOURCE_SCHEMA.fields]


def test_every_column_of_the_timeline_is_told_with_its_type() -> None:
    rows = table_after("The timeline")
    told = [(name.strip("`"), row[1]) for row in rows for name in row[0].split(", ")]
    assert told == [(field.name, field.dataType.simpleString()) for field in TIMELINE_SCHEMA.fields]
