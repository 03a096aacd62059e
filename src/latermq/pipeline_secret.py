"""The pipeline's secret, a small file that brokers and their driver share, and signatures of requests with it.

A process that can read the secret can take over the ingest of far timers. The secret is never sent over the network:
requests contain an HMAC.
"""

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from latermq.errors import ConfigError, StoreError
from latermq.secret_file import create_once

SUFFIX = ".secret"
MIN_CHARS = 32
_MAX_BYTES = 4096
_OTHER_USERS = 0o077


def secret_path(secret_file: str, timeline: str, data: Path | None = None) -> Path:
    """The path of the secret: as configured, else next to the timeline's folder, else in a broker's data directory."""
    if secret_file:
        return Path(secret_file).absolute()
    if timeline and "://" not in timeline:
        folder = Path(timeline).absolute()
        return folder.with_name(folder.name + SUFFIX)
    if data is None:
        raise ConfigError(
            "pipeline.secret_file is not set, and the timeline is not a local folder",
            hint="Copy pipeline.secret from a broker's data directory, and pass its path: "
            "--set pipeline.secret_file=PATH",
        )
    return data.absolute() / f"pipeline{SUFFIX}"


def load_secret(path: Path) -> bytes:
    """Read the secret from a file. Raises StoreError, which is retriable, if it is missing or not usable."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1).strip()
    except OSError as error:
        raise StoreError(
            f"cannot read the pipeline's secret {path}: {error.strerror}",
            hint="A broker creates it at its first start; copy that file, or set pipeline.secret_file to its path",
        ) from None
    if not MIN_CHARS <= len(text) <= _MAX_BYTES:
        raise StoreError(
            f"the pipeline's secret {path} has {len(text)} characters, it must have {MIN_CHARS}–{_MAX_BYTES}",
            hint="Remove it; a broker creates a new one at its next start; copy that one to the hosts of the drivers",
        )
    return text


def load_or_create_secret(path: Path) -> bytes:
    """Read the secret from a file, and create the file if it is missing.

    Creation is atomic. If several brokers start together, only one creates the file.
    """
    try:
        create_once(path)
    except OSError as error:
        raise ConfigError(
            f"cannot create the pipeline's secret {path}: {error.strerror}",
            hint="Set pipeline.secret_file to a path that this broker can write",
        ) from None
    return load_secret(path)


def is_open_to_others(path: Path) -> bool:
    """Whether the file permissions give other users of this machine access to the secret."""
    return bool(path.stat().st_mode & _OTHER_USERS)


class Recipient(NamedTuple):
    """The recipient of a signed request: the process that serves a store, as reported in its state.

    The instance is random and changes at each start. So recorded requests are useless against a store that was restored
    from an old backup, although it reaches the same epochs and entries a second time.
    """

    store_id: str
    instance: str


def sign(secret: bytes, code: int, recipient: Recipient, fields: Mapping[str, object]) -> str:
    """Sign a request. This proves that the sender knows the secret, and addresses this process of this store."""
    lines = [str(code), *recipient, *(f"{name}={fields[name]}" for name in sorted(fields))]
    # Each line is prefixed with its length, so different requests have different texts, whatever their fields contain.
    text = "".join(f"{len(line)}:{line}" for line in lines)
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def is_valid_signature(
    signature: str, secret: bytes, code: int, recipient: Recipient, fields: Mapping[str, object]
) -> bool:
    """Whether a signature is valid, compared in constant time. Without a secret no signature is valid."""
    expected = sign(secret, code, recipient, fields)
    return bool(secret) and hmac.compare_digest(signature.encode(errors="replace"), expected.encode())
