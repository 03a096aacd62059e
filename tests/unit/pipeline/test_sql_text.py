"""Mistakes in SQL that are found without Spark, and queries that must not be mistaken for one."""

import pytest

from latermq.pipeline.query.bad_query import TABLES, BadQuery, excerpt_at, place_in
from latermq.pipeline.query.sql_text import check_query_text, check_sql_text


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) FROM pending",
        "select extract(year from due) from pending p join timeline t on p.timer_id = t.timer_id",
        "WITH a AS (SELECT 1 x) SELECT * FROM a, pending",
        "WITH a(x) AS (SELECT 1) SELECT * FROM a WHERE x IS NOT DISTINCT FROM 3 AND x IS DISTINCT FROM 4",
        "SELECT * FROM range(3)",
        "FROM pending |> WHERE topic = 'a'",
        "SELECT trim(both 'x' from keys), 'from nothing' FROM `pending` -- from x",
        "SELECT * FROM (VALUES (1)) t(a)",
        "SELECT * FROM pending WHERE topic IN (SELECT topic FROM timeline)",
        "SELECT substring(topic from 2), overlay(topic placing 'a' from 1) FROM pending",
        "(SELECT 1) UNION (SELECT 2)",
        r"SELECT r'\', 'it\'s' FROM pending",
        "SELECT exists(SELECT 1 FROM pending) /* a ' comment */",
        "VALUES (1), (2)",
        "SELECT * FROM csv.`/x`",  # refused, but by Spark's parser
    ],
)
def test_a_query_that_may_be_right_is_left_to_spark(query: str) -> None:
    check_query_text(query, TABLES)


@pytest.mark.parametrize(
    ("query", "why", "place"),
    [
        ("SELECT 'a FROM pending", "' is not closed", 7),
        ("SELECT (1 FROM pending", "( is not closed", 7),
        ("SELECT 1) FROM pending", ") has no counterpart", 8),
        ("SELECT [1) FROM pending", ") has no counterpart", 9),
        ("SELECT 1 /* FROM pending", "/* is not closed", 9),
        ("DROP TABLE pending", "DROP is not the beginning of a query", 0),
        ("SELECT * FROM orders", "there is no table orders", 14),
        ("SELECT * FROM pending JOIN `x` USING (a)", "there is no table `x`", 27),
        ("SELECT * FROM pending WHERE topic IN (SELECT topic FROM x)", "there is no table x", 56),
    ],
)
def test_a_plain_mistake_is_found_with_its_place(query: str, why: str, place: int) -> None:
    with pytest.raises(BadQuery) as caught:
        check_query_text(query, TABLES)
    assert why in caught.value.message
    assert caught.value.excerpt == f"{query}\n{' ' * place}^"


def test_an_empty_query_and_an_open_predicate_are_refused() -> None:
    with pytest.raises(BadQuery, match="the query is empty"):
        check_query_text(" -- nothing\n", TABLES)
    with pytest.raises(BadQuery, match="` is not closed"):
        check_sql_text("topic = `a")


def test_the_excerpt_is_the_line_of_the_mistake_cut_to_fit_a_terminal() -> None:
    assert excerpt_at("SELECT a,\n  b\nFROM c", 12) == "  b\n  ^"
    line, caret = excerpt_at("x" * 500 + "!" + "x" * 500, 500).split("\n")
    assert len(line) == 120
    assert line[caret.index("^")] == "!"


def test_the_place_comes_from_the_context_of_an_error_else_from_its_text() -> None:
    text = "SELECT a,\nbb FROM c"
    assert place_in("no column; line 1 pos 3", text, [12]) == 12
    assert place_in("no column; line 2 pos 1;\n plan", text) == 11
    assert place_in("Syntax error (line 2, pos 3)", text, [-1]) == 13
    assert place_in("something else", text) is None
    assert place_in("line 9 pos 3", text) is None
