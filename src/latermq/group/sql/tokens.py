"""The tokenizer of SQL92 filters. It splits an expression into tokens with their positions."""

import re
from typing import NamedTuple

from latermq.errors import FilterError

KEYWORDS = frozenset({
    "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH",
})  # fmt: skip

# The character classes are explicit because `\s`, `\d` and IGNORECASE would accept letters, digits and spaces of other
# scripts. The end of the expression also ends a `--` comment.
_TOKEN = re.compile(
    r"""
    (?P<blank>   [ \t\n\r\f]+ | --[^\n\r]* | /\*(?s:.)*?\*/ )
  | (?P<decimal> (?: [0-9]+\.[0-9]* | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )? | [0-9]+[eE][+-]?[0-9]+ )
  | (?P<integer> [0-9]+[lL]? )
  | (?P<name>    [A-Za-z_$][A-Za-z0-9_$]* )
  | (?P<string>  '(?: [^'] | '' )*+' )
  | (?P<symbol>  <> | <= | >= | [=<>(),+-] )
    """,
    re.VERBOSE,
)
_NO_TOKEN = {
    "'": ("unterminated string", "Close it with a single quote; a quote inside a string is written twice"),
    "!": ("unexpected character '!'", "Write <> for 'not equal'"),
    '"': ("unexpected character '\"'", "Enclose strings in single quotes"),
    "/": ("unterminated comment", "Close it with */"),
}
_SEARCH_WORDS = 16  # a search in a property of maximum length may cost as much as this many comparisons
_SHOWN_CHARS = 40  # of a token in an error message: a string literal may have 64 KiB


def too_many_words(max_words: int) -> FilterError:
    """Return the error for an expression with too many SQL words or tags."""
    return FilterError(
        f"the expression has more than {max_words} words, the limit set by broker.max_expression_words",
        hint="Shorten the expression, or raise the setting",
    )


class Token(NamedTuple):
    """One token: its kind (for keywords and symbols the word itself), its text and its position, counted from 1."""

    kind: str
    text: str
    position: int

    def error(self, problem: str, hint: str = "") -> FilterError:
        """Return the error for a problem at this token."""
        if self.kind == "end":
            where = f"position {self.position}, the end of the expression"
        else:
            shown = self.text if len(self.text) <= _SHOWN_CHARS else self.text[:_SHOWN_CHARS] + "…"
            where = f"position {self.position}, {shown}"
        return FilterError(f"SQL filter: {problem} (at {where})", hint=hint)


def tokenize(expression: str, max_words: int) -> list[Token]:
    """Return the tokens of an expression without spaces and comments, followed by a token of kind `end`.

    The cost of an expression grows with its words, so one with too many is rejected here, before it is parsed.
    """
    tokens: list[Token] = []
    at = words = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            char = expression[at]
            problem, hint = _NO_TOKEN.get(char, (f"unexpected character {char!r}", ""))
            if char == "/" and not expression.startswith("/*", at):
                problem, hint = "unexpected character '/'", "Filters do not support arithmetic"
            raise Token("character", expression[at:], at + 1).error(problem, hint)
        kind, text = str(match.lastgroup), match.group()
        if kind == "symbol":
            kind = text
        elif kind == "name" and text.upper() in KEYWORDS:
            kind = text.upper()
        if kind != "blank":
            words += _SEARCH_WORDS if kind == "CONTAINS" else 1
            if words > max_words:
                raise too_many_words(max_words)
            tokens.append(Token(kind, text, at + 1))
        at = match.end()
    tokens.append(Token("end", "", len(expression) + 1))
    return tokens
