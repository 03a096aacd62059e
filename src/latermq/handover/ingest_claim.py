"""Ingest claims: small files below the pipeline's root that limit how much of a timer topic the timeline may contain.

A driver writes the claim before it appends, so the table never contains more than the claim says. The broker reads the
claim at startup, without opening the table. A log that ends before the claim's end was restored from an old backup.
"""

import msgspec

from latermq.errors import CorruptStore
from latermq.handover.checked_file import decode_checked, encode_checked

VERSION = 1
MAX_NUMBER = 1 << 53  # no store comes near it, and numbers of every language can represent it


class IngestClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that entries below `end` may be in the table. `epoch` is the epoch of the driver that wrote it.

    `broker` is the name of the store's broker, and `address` is where it listens. Both are empty in claims of earlier
    releases.
    """

    end: int
    epoch: int
    broker: str = ""
    address: str = ""
    version: int = VERSION


def claim_path(store_id: str) -> str:
    """The path of a store's claim below the root."""
    return f"claims/{store_id}"


def encode_claim(claim: IngestClaim) -> bytes:
    """Encode a claim."""
    return encode_checked(claim)


def decode_claim(data: bytes, where: str) -> IngestClaim:
    """Decode a claim; errors contain `where`."""
    hint = "Unless the store was restored from an old backup, stop the broker and delete the claim"
    claim = decode_checked(data, IngestClaim, f"the claim {where}", hint, version=VERSION)
    if not (0 <= claim.end < MAX_NUMBER and 0 <= claim.epoch < MAX_NUMBER):
        raise CorruptStore(f"the claim {where} has invalid numbers: end {claim.end}, epoch {claim.epoch}", hint=hint)
    return claim
