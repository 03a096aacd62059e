"""The manifest of a window attempt: the last file written of it, which says that the others are complete."""

import msgspec

from latermq.errors import CorruptStore
from latermq.handover.checked_file import decode_checked, encode_checked
from latermq.message.names import is_file_name

MANIFEST = "manifest.json"
VERSION = 1
MAX_MANIFEST_BYTES = 16 << 20  # of some 100,000 files


class WindowFile(msgspec.Struct, frozen=True):
    """One Parquet file of an attempt; rows are in due order within it, and files follow one another in due order."""

    name: str
    rows: int
    size_bytes: int
    crc32: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Which window the attempt is of, and what it holds."""

    store_id: str
    number: int  # of the cut
    cut_entry: int
    from_ms: int
    until_ms: int
    made_by: str  # spark or local
    table_version: int
    ingest_offset: int  # what the table held when it was read; the rest came from the broker itself
    rows: int
    files: list[WindowFile]
    page_checksums: bool = False  # whether every page of the files has a checksum of its own
    version: int = VERSION


def window_folder(store_id: str, number: int) -> str:
    """Where the attempts of a window lie below the pipeline's root."""
    return f"windows/{store_id}/{number}"


def encode_manifest(manifest: Manifest) -> bytes:
    """Its bytes."""
    return encode_checked(manifest)


def decode_manifest(data: bytes, where: str) -> Manifest:
    """What a manifest says, once its checksum was compared; `where` is told in errors."""
    hint = "The broker makes another attempt"
    manifest = decode_checked(data, Manifest, f"the manifest {where}", hint)
    if manifest.version != VERSION:
        raise CorruptStore(f"the manifest {where} has version {manifest.version}, not {VERSION}", hint=hint)
    for file in manifest.files:
        if not is_file_name(file.name) or file.rows < 0:
            raise CorruptStore(f"the manifest {where} names {file.name[:40]!r}, which is no file of it", hint=hint)
    return manifest
