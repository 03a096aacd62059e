"""Escaping of untrusted text for display: control characters for terminals and invisible characters."""

import re

# C0 including tab and line feed, DEL and C1; soft hyphens, zero-width marks and joiners; line and paragraph separators;
# direction overrides and isolates; tags; lone surrogates, which cannot be printed at all.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff\ud800-\udfff]"
)
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def visible(text: str) -> str:
    """Replace every control or invisible character with an escape such as `\\n`, `\\x1b` or `\\u202e`."""
    return text if text.isascii() and text.isprintable() else _INVISIBLE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    number = ord(char)
    if number < 0x100:
        return _SHORT.get(char) or f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def visible_json(text: str) -> str:
    """The same for a JSON document. Its meaning does not change, because such characters occur only in its strings."""
    return text if text.isascii() and text.isprintable() else _INVISIBLE.sub(_escape_json, text)


def _escape_json(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
