"""Redaction of credentials: in URIs, for errors, log lines and replies, and in the text of structs with a secret.

Many libraries repeat a URI in their error messages, so URIs are searched for in the text itself.
"""

import re

import msgspec

MASK = "***"
# Untrusted clients choose texts too: one pass over words, and no pattern that could read a character twice.
# A URI may contain an apostrophe, so an apostrophe does not end it, although libraries also use it as a quote.
_WORD = re.compile(r"[^\s\"<>]+")


def without_secrets(shown: msgspec.Struct, *secret_fields: str) -> str:
    """The text of a struct, with a mask for secrets that are set. For `__repr__`, so that no log line shows them."""

    def text(name: str) -> str:
        value = getattr(shown, name)
        return MASK if value and name in secret_fields else repr(value)

    return f"{type(shown).__name__}({', '.join(f'{name}={text(name)}' for name in shown.__struct_fields__)})"


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
