"""The URLs of webhooks in a setting. No error repeats a URL, because its path often contains a password."""

import re
from urllib.parse import SplitResult, urlsplit

MAX_WEBHOOKS = 10
_VISIBLE = re.compile(r"[!-~]+").fullmatch


def webhook_urls(text: str) -> list[SplitResult]:
    """Return the URLs, which semicolons separate. Raises ValueError that names the first one that is not valid."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if len(parts) > MAX_WEBHOOKS:
        raise ValueError(f"it has {len(parts)} URLs, the limit is {MAX_WEBHOOKS}")
    return [_parsed(number, part) for number, part in enumerate(parts, start=1)]


def _parsed(number: int, text: str) -> SplitResult:
    wrong = ValueError(f"URL number {number} is not valid")
    try:
        url = urlsplit(text)
        is_valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        raise wrong from None
    if not is_valid or url.fragment or "@" in url.netloc or not _VISIBLE(text):
        raise wrong
    return url
