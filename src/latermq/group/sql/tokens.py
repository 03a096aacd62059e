"""The words of a SQL92 filter: cuts an expression into tokens and says where each of them stands."""

import re
from typing import NamedTuple

from latermq.errors import FilterError

KEYWORDS = frozenset({
    "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH",
})  # fmt: skip

# The character classes are spelled out: `\s`, `\d` and IGNORECASE would let in letters, digits and blanks of other
# scripts. A comment may also end with the expression.
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
    "'": ("a string that does not end", "Close it with a single quote; a quote inside a string is written twice"),
    "!": ("unexpected character '!'", "'Not equal' is written <>"),
    '"': ("unexpected character '\"'", "Strings stand in single quotes"),
    "/": ("a comment that does not end", "Close it with */"),
}
_SEARCH_WORDS = 16  # as much as a search through a property of full length may cost more than a comparison
_SHOWN_CHARS = 40  # an error names the token; a string literal of 64 KiB need not be quoted whole


def too_many_words(max_words: int) -> FilterError:
    """The same for both kinds of expression: words of SQL, tags."""
    return FilterError(
        f"the expression has more than {max_words} words, as many as broker.max_expression_words allows",
        hint="Subscribe to less, or raise the setting",
    )


class Token(NamedTuple):
    """One word: its kind (for keywords and symbols the word itself), its text and its first character, from 1."""

    kind: str
    text: str
    position: int

    def error(self, problem: str, hint: str = "") -> FilterError:
        """What is wrong at this token."""
        if self.kind == "end":
            where = f"position {self.position}, the end of the expression"
        else:
            shown = self.text if len(self.text) <= _SHOWN_CHARS else self.text[:_SHOWN_CHARS] + "…"
            where = f"position {self.position}, {shown}"
        return FilterError(f"SQL filter: {problem} (at {where})", hint=hint)


def tokenize(expression: str, max_words: int) -> list[Token]:
    """The tokens of an expression, without blanks and comments, closed by one of kind `end`.

    What an expression costs goes with its words, so one with more of them is refused here, before anybody parses it.
    """
    tokens: list[Token] = []
    at = words = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            char = expression[at]
            problem, hint = _NO_TOKEN.get(char, (f"unexpected character {char!r}", ""))
            if char == "/" and not expression.startswith("/*", at):
                problem, hint = "unexpected character '/'", "There is no arithmetic in filters"
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
