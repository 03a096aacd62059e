"""Reply tables of many queues, encoded in steps. A wide topic's whole table would take tens of milliseconds."""

from collections.abc import Iterable
from typing import Any

import msgspec

from latermq.protocol.remoting.json_body import encode_entry, join_entries
from latermq.timer.steps import Steps

ENTRIES_PER_STEP = 5  # 3 µs each


def keyed_map(entries: Iterable[tuple[Any, Any]]) -> Steps[msgspec.Raw]:
    """`encode_keyed_map` in steps."""
    encoded: list[bytes] = []
    for key, value in entries:
        encoded.append(encode_entry(key, value))
        if len(encoded) % ENTRIES_PER_STEP == 0:
            yield
    return join_entries(encoded)
