"""Spark's errors about a user's SQL as one sentence and the place of the mistake."""

import re

from pyspark.errors import PySparkException

from latermq.pipeline.query.bad_query import BadQuery, excerpt_at, place_in
from latermq.pipeline.spark.spark_failures import first_line

# What Spark adds for programs: its code of the SQL standard, and the place, which the caret shows.
_FOR_PROGRAMS = re.compile(r"\s*SQLSTATE: \w+\.?|;? ?\(?line \d+,? pos \d+\)?;?")


def rejected(error: PySparkException, text: str) -> BadQuery:
    """An error for a text that Spark rejects."""
    message = first_line(error)
    index = place_in(str(error), text, _starts(error))
    excerpt = "" if index is None else excerpt_at(text, index)
    if excerpt:
        message = _FOR_PROGRAMS.sub("", message).strip().rstrip(";")
    return BadQuery(f"Spark rejects the SQL: {message}", excerpt=excerpt)


def _starts(error: PySparkException) -> list[int]:
    try:
        return [context.startIndex() for context in error.getQueryContext()]
    except Exception:  # of a call on a DataFrame, which has no text, or of an older server
        return []
