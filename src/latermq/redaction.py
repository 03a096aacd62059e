"""Credentials in URIs, left out of everything that is told: errors, log lines, answers.

Texts come from many libraries that repeat the URI they were given, so they are looked for in the text itself.
"""

import re

HIDDEN = "***"
# A name and a password before the host. A name alone is none: of abfss://container@account it is the container.
_PASSWORD = re.compile(r"([A-Za-z][\w+.-]*://)[^\s@/'\"<>]*:[^\s'\"<>]*@")
# What follows the path: shared access signatures and tokens stand there.
_QUERY = re.compile(r"([A-Za-z][\w+.-]*://[^\s?'\"<>]*)\?[^\s'\"<>]+")


def redacted(text: str) -> str:
    """The text without the passwords and the queries of URIs."""
    if "://" not in text:
        return text
    return _QUERY.sub(rf"\1?{HIDDEN}", _PASSWORD.sub(rf"\1{HIDDEN}@", text))
