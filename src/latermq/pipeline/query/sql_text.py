"""Mistakes in SQL that show without Spark: open quotes, comments and parentheses, and unknown tables.

This check only saves the start of Spark. It accepts whatever it does not understand: Spark's parser decides.
"""

import re
from collections.abc import Collection
from typing import NamedTuple

from latermq.pipeline.query.bad_query import BadQuery, excerpt_at

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      |(?P<text>\b[rR](?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      |(?P<quoted>`(?:[^`]|``)*`)
      |(?P<word>[A-Za-z_]\w*)
      |(?P<open_quote>['"`])
      |(?P<open_comment>/\*)
      |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_OPENING, _CLOSING = "([{", {")": "(", "]": "[", "}": "{"}
_NAMES_A_TABLE = frozenset({"FROM", "JOIN"})
# Words after which a parenthesis may hold a query. After any other word it holds the arguments of a function, where
# FROM has another meaning: extract(YEAR FROM due).
_BEFORE_QUERIES = frozenset({
    "ALL", "ANTI", "ANY", "AS", "CROSS", "EXCEPT", "EXISTS", "FROM", "FULL", "IN", "INTERSECT", "JOIN", "LATERAL",
    "LEFT", "MINUS", "NOT", "OUTER", "RIGHT", "SELECT", "SEMI", "SOME", "UNION", "WHERE", "AND", "OR", "ON",
    "HAVING", "THEN", "WHEN", "ELSE", "BY", "DISTINCT", "WITH",
})  # fmt: skip
_STARTS = frozenset({"SELECT", "WITH", "FROM", "VALUES", "TABLE"})


class _Token(NamedTuple):
    kind: str
    text: str
    start: int

    @property
    def upper(self) -> str:
        return self.text.upper() if self.kind == "word" else self.text


def check_sql_text(text: str) -> None:
    """Refuse text with an open quote, comment or parenthesis."""
    _tokens(text)


def check_query_text(text: str, tables: Collection[str]) -> None:
    """Refuse a query that is open, does not begin as a query, or reads a table that is not one of these."""
    tokens = _tokens(text)
    if not tokens:
        raise BadQuery("the query is empty", hint="Write a SELECT")
    first = next((token for token in tokens if token.text != "("), tokens[0])
    if first.kind == "word" and first.upper not in _STARTS:
        raise BadQuery(
            f"only reading is allowed, and {first.upper} is not the beginning of a query",
            hint="Write a SELECT",
            excerpt=excerpt_at(text, first.start),
        )
    known = {name.lower() for name in tables} | _defined_tables(tokens)
    for token in _named_tables(tokens):
        if token.text.strip("`").lower() not in known:
            raise BadQuery(
                f"there is no table {token.text}",
                hint=f"The tables are {', '.join(tables)}",
                excerpt=excerpt_at(text, token.start),
            )


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    opened: list[_Token] = []
    for found in _TOKEN.finditer(text):
        token = _Token(found.lastgroup or "", found[0], found.start())
        if token.kind == "space":
            continue
        if token.kind in ("open_quote", "open_comment"):
            raise BadQuery(f"{token.text} is not closed", excerpt=excerpt_at(text, token.start))
        if token.text in _CLOSING:
            if not opened or opened[-1].text != _CLOSING[token.text]:
                raise BadQuery(f"{token.text} has no counterpart", excerpt=excerpt_at(text, token.start))
            opened.pop()
        elif token.kind == "sign" and token.text in _OPENING:
            opened.append(token)
        tokens.append(token)
    if opened:
        raise BadQuery(f"{opened[-1].text} is not closed", excerpt=excerpt_at(text, opened[-1].start))
    return tokens


def _defined_tables(tokens: list[_Token]) -> set[str]:
    """Names that may be defined in the query itself: those before AS and before a list of columns that AS follows."""
    names: set[str] = set()
    for number, token in enumerate(tokens):
        if token.upper != "AS" or not number:
            continue
        before = number - 1
        if tokens[before].text == ")":  # name (column, …) AS
            depth = 1
            while before and depth:
                before -= 1
                depth += (tokens[before].text == ")") - (tokens[before].text == "(")
            before -= 1
        if before >= 0:
            names.add(tokens[before].text.strip("`").lower())
    return names


def _named_tables(tokens: list[_Token]) -> list[_Token]:
    """The names after FROM and JOIN, except where they may be something else."""
    named: list[_Token] = []
    in_arguments = [False]  # for each open parenthesis: whether it holds the arguments of a function
    for number, token in enumerate(tokens):
        previous = tokens[number - 1] if number else None
        if token.text == "(" and token.kind == "sign":
            is_call = previous is not None and (
                (previous.kind == "word" and previous.upper not in _BEFORE_QUERIES) or previous.kind == "quoted"
            )
            inner = tokens[number + 1] if number + 1 < len(tokens) else token
            in_arguments.append(is_call and inner.upper not in _STARTS)
        elif token.text == ")" and token.kind == "sign":
            in_arguments.pop()
        elif token.upper in _NAMES_A_TABLE and not in_arguments[-1] and number + 1 < len(tokens):
            is_comparison = previous is not None and previous.upper == "DISTINCT" and _is_after_is(tokens, number)
            name, after = tokens[number + 1], tokens[number + 2] if number + 2 < len(tokens) else None
            is_other = after is not None and after.text in ("(", ".")
            is_name = name.kind == "quoted" or (name.kind == "word" and name.upper not in ("LATERAL", "VALUES"))
            if is_name and not is_comparison and not is_other and name.upper not in _STARTS:
                named.append(name)
    return named


def _is_after_is(tokens: list[_Token], number: int) -> bool:
    """Whether the FROM at `number` belongs to IS [NOT] DISTINCT FROM."""
    before = [token.upper for token in tokens[max(0, number - 3) : number - 1]]
    return before[-1:] == ["IS"] or before == ["IS", "NOT"]
