"""Finds and reads RocketMQ's files of users: plain_acl.yml of 4.x, and the two RocksDB folders of 5.x brokers."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from latermq.access.imports import Imported, from_plain_acl, from_records
from latermq.errors import ConfigError

MAX_YAML_BYTES = 16 * 1024 * 1024
MAX_STORE_BYTES = 1024 * 1024 * 1024
_YAML = (".yml", ".yaml")


def read_files(path: Path) -> Imported:
    """Read a YAML file, a folder with such files, or a folder with `users` and `acls`. Changes nothing there."""
    try:
        store = _store_folder(path)
        if store is not None:
            return _read_store(store)
        return from_plain_acl({str(file): _read_yaml(file) for file in _yaml_files(path)})
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename or path}: {error.strerror or error}") from None


def _store_folder(path: Path) -> Path | None:
    """The folder with the databases: itself, or `config` in a store."""
    return next((one for one in (path, path / "config") if (one / "users" / "CURRENT").is_file()), None)


def _yaml_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    base = path / "conf" if (path / "conf").is_dir() else path
    # In this order RocketMQ reads them. tools.yml is for mqadmin.
    inner = base / "acl" if (base / "acl").is_dir() else base
    files = sorted(file for file in inner.rglob("*") if file.suffix in _YAML and file.name != "tools.yml")
    if (base / "plain_acl.yml").is_file() and inner != base:
        files.append(base / "plain_acl.yml")
    if not files:
        raise ConfigError(
            f"{path} has neither plain_acl.yml nor a folder users with a database",
            hint="Name plain_acl.yml, the folder conf of RocketMQ 4.x, or the folder config of a 5.x broker's store",
        )
    return files


def _read_yaml(file: Path) -> Any:
    import yaml

    from latermq.cli.access.plain_yaml import PlainLoader

    with file.open("rb") as opened:
        data = opened.read(MAX_YAML_BYTES + 1)
    if len(data) > MAX_YAML_BYTES:
        raise ConfigError(f"{file} has more than {MAX_YAML_BYTES >> 20} MiB")
    try:
        return yaml.load(data, PlainLoader)  # a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from None


def _read_store(folder: Path) -> Imported:
    """Read a copy, because even a reader of RocksDB writes into its folder."""
    sizes = [file.stat().st_size for name in ("users", "acls") for file in (folder / name).rglob("*")]
    if sum(sizes) > MAX_STORE_BYTES:
        raise ConfigError(f"the databases in {folder} have more than {MAX_STORE_BYTES >> 20} MiB")
    with tempfile.TemporaryDirectory(prefix="latermq-import-") as copy:  # mode 0700
        for name in ("users", "acls"):
            if (folder / name).is_dir():
                shutil.copytree(folder / name, Path(copy) / name)
        return from_records(_records(Path(copy) / "users"), _records(Path(copy) / "acls"))


def _records(folder: Path) -> list[tuple[bytes, bytes]]:
    from rocksdict import AccessType, Options, Rdict

    if not folder.is_dir():
        return []
    try:
        database = Rdict(str(folder), options=Options(raw_mode=True), access_type=AccessType.read_only())
        try:
            return [
                (key, value) for key, value in database.items() if isinstance(key, bytes) and isinstance(value, bytes)
            ]
        finally:
            database.close()
    except Exception as error:  # rocksdict has no class of its own
        raise ConfigError(
            f"cannot read the database {folder.name}: {error}", hint="Stop RocketMQ's broker, and import again"
        ) from None
