"""Units of settings: durations and sizes, and how they are written."""

import re

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE = re.compile(r"(\d+)(B|KiB|MiB|GiB|TiB)?")
_SIZE_BYTES = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class Duration(int):
    """Milliseconds, written `500ms`, `90s`, `72h` or `40d`."""

    @classmethod
    def parse(cls, text: str) -> "Duration":
        match = _DURATION.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a valid duration; use a number and ms, s, m, h or d, such as 90s")
        try:
            return cls(float(match[1]) * _DURATION_MS[match[2]])
        except OverflowError:
            raise ValueError(f"{text[:20]}… is not a valid duration; use a smaller number") from None


class Size(int):
    """Bytes, written `4096`, `64MiB` or `1GiB`."""

    @classmethod
    def parse(cls, text: str) -> "Size":
        match = _SIZE.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a valid size; use a number and B, KiB, MiB, GiB or TiB, such as 64MiB")
        return cls(int(match[1]) * _SIZE_BYTES[match[2]])
