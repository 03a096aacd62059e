"""Redaction of credentials in URIs, for errors, log lines and replies.

Many libraries repeat a URI in their error messages, so URIs are searched for in the text itself.
"""

import re

MASK = "***"
# Untrusted clients choose texts too: one pass over words, and no pattern that could read a character twice.
# A URI may contain an apostrophe, so an apostrophe does not end it, although libraries also use it as a quote.
_WORD = re.compile(r"[^\s\"<>]+")


def redacted(text: str) -> str:
    """The text without the passwords and query strings of URIs."""
    return _WORD.sub(_without_credentials, text) if "://" in text else text


def _without_credentials(word: re.Match[str]) -> str:
    scheme, found, rest = word[0].partition("://")
    if not found:
        return word[0]
    before_host, at, host = rest.rpartition("@")
    # A name without a password is not secret: in abfss://container@account it is the container.
    if at and ":" in before_host:
        rest = f"{MASK}@{host}"
    path, query, signature = rest.partition("?")
    # The query string may contain shared access signatures and tokens.
    return f"{scheme}://{path}?{MASK}" if query and signature else f"{scheme}://{rest}"
