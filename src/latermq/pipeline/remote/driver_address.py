"""The file with which commands and notebooks find the running driver: its ports, and the token that they require.

A process that has the token can run code in the driver. So the file is readable by its owner only, the token changes
with each start, and it is in no command line, environment variable or log line.
"""

import os
import secrets
from pathlib import Path

import msgspec

from latermq.config import PipelineConfig
from latermq.errors import ConfigError, StoreError
from latermq.pipeline_secret import SUFFIX as SECRET_SUFFIX
from latermq.pipeline_secret import secret_path

SUFFIX = ".connect"
HOST = "127.0.0.1"
_MAX_BYTES = 4096


class DriverAddress(msgspec.Struct, frozen=True):
    """Where a driver listens on its own machine."""

    token: str
    control_port: int
    connect_port: int  # 0: the driver does not offer Spark Connect
    pid: int

    def __repr__(self) -> str:
        """Without the token, so that no log line or traceback shows it."""
        return f"DriverAddress(control_port={self.control_port}, connect_port={self.connect_port}, pid={self.pid})"


def new_token() -> str:
    return secrets.token_hex(32)


def address_path(config: PipelineConfig, timeline: str) -> Path | None:
    """The path of the file: as configured, else next to the pipeline's secret. None if neither is known."""
    if config.connect_file:
        return Path(config.connect_file).absolute()
    try:
        secret = secret_path(config.secret_file, timeline)
    except ConfigError:  # the timeline is a URI, and nothing tells where the driver keeps its secret
        return None
    return secret.with_name(secret.name.removesuffix(SECRET_SUFFIX) + SUFFIX)


def write_address(path: Path, address: DriverAddress) -> None:
    """Publish the address of this process in place of an earlier one."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.draft")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(address))
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StoreError(
            f"cannot write the driver's address {path}: {error.strerror}",
            hint="Set pipeline.connect_file to a path that the driver can write",
        ) from None


def read_address(path: Path) -> DriverAddress | None:
    """The address of the driver that started last; None if there is no file."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(
            f"cannot read the driver's address {path}: {error.strerror}",
            hint="Only the user who runs the driver can use it",
        ) from None
    try:
        return msgspec.json.decode(data, type=DriverAddress)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StoreError(f"{path} is not the address of a driver", hint="Restart the driver") from None


def remove_address(path: Path, address: DriverAddress) -> None:
    """Remove the file at the end of a driver, unless another driver has replaced it."""
    try:
        if read_address(path) == address:
            path.unlink(missing_ok=True)
    except StoreError:  # someone else's file
        return
