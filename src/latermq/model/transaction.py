"""The end of a transaction, as its producer requests it, and counters of what became of transactions."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

# How a transaction stands: in the record that ends it, and for proxies that ask.
OPEN, COMMITTED, ROLLED_BACK, GIVEN_UP = "open", "committed", "rolled back", "given up"


class Decision(Enum):
    """What a producer has decided."""

    COMMIT = "commit"
    ROLL_BACK = "roll back"
    UNKNOWN = "unknown"  # not yet; the producer is asked again


class EndTransaction(NamedTuple):
    """Names a half by both of its offsets, or by its unique key if they are None."""

    producer_group: str
    decision: Decision
    physical_offset: int | None
    queue_offset: int | None
    unique_key: str
    topic: str  # the real topic; may be empty


@dataclass(slots=True)
class TransactionTallies:
    """Counters since the start of the broker."""

    committed: int = 0
    rolled_back: int = 0
    given_up: int = 0
    checks: int = 0  # sent to producers
