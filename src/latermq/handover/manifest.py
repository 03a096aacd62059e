"""Manifests of window attempts. The manifest is written last, and shows that the other files are complete."""

import msgspec

from latermq.errors import CorruptStore
from latermq.handover.checked_file import decode_checked, encode_checked
from latermq.message.names import is_file_name

MANIFEST = "manifest.json"
VERSION = 1
MAX_MANIFEST_BYTES = 16 << 20  # enough for about 100,000 files


class WindowFile(msgspec.Struct, frozen=True):
    """One Parquet file of an attempt. Rows are in due order within a file and across files."""

    name: str
    rows: int
    size_bytes: int
    crc32: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The window of an attempt, and its contents."""

    store_id: str
    number: int  # of the cut
    cut_entry: int
    from_ms: int
    until_ms: int
    made_by: str  # spark, driver or local
    table_version: int
    ingest_offset: int  # entries below it came from the table, later ones from the broker
    rows: int
    files: list[WindowFile]
    page_checksums: bool = False  # whether every page of the files has a checksum
    took_ms: int | None = None  # to build it; None from earlier releases
    version: int = VERSION


def window_folder(store_id: str, number: int) -> str:
    """The folder with the attempts of a window, relative to the pipeline's root."""
    return f"windows/{store_id}/{number}"


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest."""
    return encode_checked(manifest)


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Verify the checksum and decode a manifest; errors contain `where`."""
    hint = "The broker builds another attempt"
    manifest = decode_checked(data, Manifest, f"the manifest {where}", hint, version=VERSION)
    for file in manifest.files:
        if not is_file_name(file.name) or file.rows < 0:
            raise CorruptStore(
                f"the manifest {where} lists an invalid file: {file.name[:40]!r}, {file.rows} rows", hint=hint
            )
    return manifest
