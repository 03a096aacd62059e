"""Ingest claims: small files below the pipeline's root that limit how much of a timer topic the timeline may contain.

A driver writes the claim before it appends, so the table never contains more than the claim says. The broker reads the
claim at startup, without opening the table. A log that ends before the claim's end was restored from an old backup.

Each epoch has its own file. A driver whose time is over can therefore not replace the claim of the next one, even if
it writes late. The highest of the files applies.
"""

from collections.abc import Callable, Iterable

import msgspec

from latermq.errors import CorruptStore, StoreError
from latermq.handover.checked_file import decode_checked, encode_checked

VERSION = 1
CLAIMS = "claims"  # the folder
_LISTINGS = 5
_MAX_DIGITS = 18  # always fits into 64 bits
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


def claim_path(store_id: str, epoch: int | None = None) -> str:
    """The path below the root of a store's claim of one epoch. Earlier releases had one file for all epochs."""
    return f"{CLAIMS}/{store_id}" if epoch is None else f"{CLAIMS}/{store_id}.{epoch}"


def claim_store(name: str) -> str:
    """The store that a file in the folder of claims belongs to."""
    return _split(name)[0]


def claim_epoch(name: str) -> int:
    """The epoch of a file in the folder of claims; -1 for those of earlier releases."""
    return _split(name)[1]


def _split(name: str) -> tuple[str, int]:
    store_id, dot, epoch = name.rpartition(".")
    if dot and epoch.isascii() and epoch.isdecimal() and len(epoch) < _MAX_DIGITS:
        return store_id, int(epoch)
    return name, -1


def read_claims(
    store_id: str, names: Callable[[], Iterable[str]], read: Callable[[str], bytes | None], root: str
) -> IngestClaim | None:
    """What all files of a store claim together; None if there is none.

    `names` lists the folder of claims, and `read` returns the bytes of a path below the root.
    """
    for _ in range(_LISTINGS):
        paths = [f"{CLAIMS}/{name}" for name in names() if claim_store(name) == store_id]
        found = [(path, read(path)) for path in paths]
        claims = [decode_claim(data, f"{root}/{path}") for path, data in found if data is not None]
        # A file that is gone was replaced by one of a later epoch, which this list may lack.
        if len(claims) == len(paths):
            return _merge(claims)
    raise StoreError(f"the claims of store {store_id} at {root} change all the time", hint="Try again")


def _merge(claims: Iterable[IngestClaim]) -> IngestClaim | None:
    """One claim for all: the highest end, and the broker of the last epoch that names it."""
    merged: IngestClaim | None = None
    for claim in sorted(claims, key=lambda each: each.epoch):
        merged = IngestClaim(
            end=max(merged.end if merged else 0, claim.end),
            epoch=claim.epoch,
            broker=claim.broker or (merged.broker if merged else ""),
            address=claim.address or (merged.address if merged else ""),
        )
    return merged


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
