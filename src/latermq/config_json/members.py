"""The members of a JSON object as raw text, found without parsing their values.

This is for files that do not parse. The code does not recurse, so no nesting is too deep. If the text is truncated, it
still finds the members before that point.
"""

import re
from collections.abc import Iterator

# An unterminated string extends to the end of the text. A new search from each of its quotes would take hours.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)


def members(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield each raw name without quotes, and its raw value. A truncated value is yielded as far as it goes."""
    depth = 0
    name = b""
    value_from = -1
    at = 0
    while (token := _TOKEN.search(data, at)) is not None:
        text, at = token[0], token.end()
        if depth == 1 and text in (b",", b"}"):
            if value_from >= 0:
                yield name, data[value_from : token.start()].strip()
            name, value_from = b"", -1
            if text == b"}":
                return
        elif depth == 1 and text == b":" and value_from < 0:
            value_from = at
        elif text in (b"{", b"["):
            depth += 1
            if depth == 1 and text == b"[":
                return
        elif text in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and value_from < 0:
            name = text.strip(b'"')
    if value_from >= 0:
        yield name, data[value_from:].strip()


def is_closed(data: bytes) -> bool:
    """Whether there are as many closing as opening brackets; otherwise the text is truncated."""
    tokens = [token[0] for token in _TOKEN.finditer(data)]
    return sum(token in (b"{", b"[") for token in tokens) == sum(token in (b"}", b"]") for token in tokens)
