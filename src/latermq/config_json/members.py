"""The members of a JSON object as they were written, found without reading their values.

For files that do not parse as a whole: nothing here recurses, so no nesting is too deep, and what stands before a place
where the text breaks off is found all the same.
"""

import re
from collections.abc import Iterator

# A string that does not end goes to the end of the text: looked for again from each of its quotes, it would take hours.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)


def members(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Each name, as written but without quotes, and its value; of one that breaks off, what there is of it."""
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
    """Whether as many brackets close as open: otherwise the text breaks off."""
    tokens = [token[0] for token in _TOKEN.finditer(data)]
    return sum(token in (b"{", b"[") for token in tokens) == sum(token in (b"}", b"]") for token in tokens)
