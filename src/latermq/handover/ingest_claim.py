"""The ingest claim: how far a timeline may hold a store's timer topic. A small file below the pipeline's root.

A driver writes it before it appends, so the table never holds more than it says. The broker reads it at its start,
without opening the table: a log that ends below is an old copy.
"""

import msgspec

from latermq.errors import CorruptStore
from latermq.handover.checked_file import decode_checked, encode_checked

VERSION = 1
MAX_NUMBER = 1 << 53  # no store comes near it, and every language's numbers can hold it


class IngestClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Entries below `end` may be in the table; `epoch` is that of the driver that says so.

    `broker` has the store, and listens at `address`. Claims of earlier releases do not say so.
    """

    end: int
    epoch: int
    broker: str = ""
    address: str = ""
    version: int = VERSION


def claim_path(store_id: str) -> str:
    """Where it lies below the root."""
    return f"claims/{store_id}"


def encode_claim(claim: IngestClaim) -> bytes:
    """Its bytes."""
    return encode_checked(claim)


def decode_claim(data: bytes, where: str) -> IngestClaim:
    """What a claim says; `where` is told in errors."""
    hint = "Remove it while the broker stands still, if its store was not put back from an old copy"
    claim = decode_checked(data, IngestClaim, f"the claim {where}", hint)
    if claim.version != VERSION:
        raise CorruptStore(f"the claim {where} has version {claim.version}, not {VERSION}", hint=hint)
    if not (0 <= claim.end < MAX_NUMBER and 0 <= claim.epoch < MAX_NUMBER):
        raise CorruptStore(f"the claim {where} says entry {claim.end} and epoch {claim.epoch}", hint=hint)
    return claim
