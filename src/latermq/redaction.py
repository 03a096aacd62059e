"""Credentials in URIs, left out of everything that is told: errors, log lines, answers.

Texts come from many libraries that repeat the URI they were given, so they are looked for in the text itself.
"""

import re

HIDDEN = "***"
# Strangers choose texts, too: one pass over words, and no pattern that could look at a character twice.
# A URI may hold an apostrophe, so one does not end it, though libraries also quote with it.
_WORD = re.compile(r"[^\s\"<>]+")


def redacted(text: str) -> str:
    """The text without the passwords and the queries of URIs."""
    return _WORD.sub(_without_credentials, text) if "://" in text else text


def _without_credentials(word: re.Match[str]) -> str:
    scheme, found, rest = word[0].partition("://")
    if not found:
        return word[0]
    before_host, at, place = rest.rpartition("@")
    # A name alone is no secret: of abfss://container@account it is the container.
    if at and ":" in before_host:
        rest = f"{HIDDEN}@{place}"
    path, query, signature = rest.partition("?")
    # What follows the path: shared access signatures and tokens stand there.
    return f"{scheme}://{path}?{HIDDEN}" if query and signature else f"{scheme}://{rest}"
