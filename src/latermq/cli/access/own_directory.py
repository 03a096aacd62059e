"""The users of a broker for the owner of its data directory, without a user: the way back in after a lock-out.

A stopped broker's file of users is changed directly. A running broker is asked, signed with the secret that its own
processes use, which only the owner of the directory can read.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from latermq.access.changes import SUBJECT_PREFIX, KnownUser, UserChange
from latermq.access.inner_credentials import FILE_NAME, inner_file, load_inner_secret
from latermq.access.policies import Acl
from latermq.access.users import INNER_USER, AccessState
from latermq.addresses import connectable
from latermq.audit.audit_log import AuditLog, open_audit
from latermq.broker.tables.access_table import AccessTable
from latermq.cli.access.places import Place
from latermq.client.session.credentials import Credentials
from latermq.client.users import UserAdmin
from latermq.clock import SystemClock
from latermq.config import Config, load_config
from latermq.errors import ConfigError, StoreError
from latermq.server.broker.access_control import open_users
from latermq.server.private_files import keep_private
from latermq.server.serve_record import read_record
from latermq.store.files.disk import FileDisk


class StoredUsers:
    """The users in the data directory of a stopped broker."""

    def __init__(self, name: str, table: AccessTable, audit: AuditLog | None) -> None:
        self.name = name
        self._table = table
        self._audit = audit

    async def users(self) -> dict[str, KnownUser]:
        return {
            user.name: KnownUser(user.name, user.is_super, user.is_enabled, bool(user.previous_secret), user.secret)
            for user in self._table.state.users.values()
        }

    async def acls(self) -> dict[str, Acl]:
        return dict(self._table.state.acls)

    async def create_user(self, name: str, change: UserChange) -> None:
        editor = self._table.editor
        self._change(
            "AUTH_CREATE_USER", {"username": name}, lambda state: editor.create_user(state, name, change, by_super=True)
        )

    async def update_user(self, name: str, change: UserChange) -> None:
        editor = self._table.editor
        self._change(
            "AUTH_UPDATE_USER", {"username": name}, lambda state: editor.update_user(state, name, change, by_super=True)
        )

    async def delete_user(self, name: str) -> None:
        editor = self._table.editor
        self._change(
            "AUTH_DELETE_USER", {"username": name}, lambda state: editor.delete_user(state, name, by_super=True)
        )

    async def merge_acl(self, name: str, acl: Acl) -> None:
        subject, editor = SUBJECT_PREFIX + name, self._table.editor
        entries = "; ".join(map(str, (*acl.custom, *acl.default)))
        self._change(
            "AUTH_CREATE_ACL",
            {"subject": subject, "entries": entries},
            lambda state: editor.merge_acl(state, subject, acl, by_super=True),
        )

    async def delete_entry(self, name: str, resource: str, *, is_default: bool) -> None:
        subject, editor = SUBJECT_PREFIX + name, self._table.editor
        self._change(
            "AUTH_DELETE_ACL",
            {"subject": subject, "resource": resource},
            lambda state: editor.delete_acl(state, subject, resource, is_default=is_default, by_super=True),
        )

    def _change(self, request: str, details: Mapping[str, str], change: Callable[[AccessState], AccessState]) -> None:
        self._table.change(change)
        if self._audit is not None:
            self._audit.note(
                user=f"uid {os.getuid()}", source="data directory", request=request, result="allowed", details=details
            )


@contextlib.asynccontextmanager
async def opened_directory(data: Path, namesrv: str, *, creates: bool) -> AsyncIterator[Sequence[Place]]:
    """The users of the broker with this data directory, whether it runs or not."""
    config = load_config()
    _require_owner(data, creates=creates)
    keep_private(config)
    disk = FileDisk(data)
    try:
        disk.lock()
    except StoreError as error:
        if "in use" not in error.message:
            raise
        async with _running(data, namesrv, config) as places:
            yield places
        return
    try:
        with _audited(config, data) as audit:
            yield [StoredUsers(str(data), open_users(disk, config.access), audit)]
    finally:
        disk.unlock()


@contextlib.contextmanager
def _audited(config: Config, data: Path) -> Iterator[AuditLog | None]:
    audit = open_audit(config.audit, data, "broker stopped", SystemClock())
    if audit is None:
        yield None
        return
    audit.start()
    try:
        yield audit
    finally:
        audit.stop()


def _require_owner(data: Path, *, creates: bool) -> None:
    if creates:
        data.mkdir(0o700, parents=True, exist_ok=True)
    if not data.is_dir():
        raise ConfigError(f"there is no data directory {data}")
    owner = data.stat().st_uid
    if owner != os.geteuid():
        # As root, files would get an owner that the broker cannot read them as.
        raise ConfigError(
            f"the data directory {data} belongs to uid {owner}",
            hint=f"Run the command as its owner: sudo -u '#{owner}' latermq …",
        )


@contextlib.asynccontextmanager
async def _running(data: Path, namesrv: str, config: Config) -> AsyncIterator[Sequence[Place]]:
    """Ask the broker of `latermq serve`, or the brokers of the name server, as LaterMQ's own processes do."""
    secret = load_inner_secret(inner_file(config.access, data) or data / FILE_NAME)
    async with UserAdmin(namesrv, credentials=Credentials(INNER_USER, secret)) as admin:
        address = _broker_of_serve(data)
        yield [admin.at(address, str(data))] if address else await admin.everywhere()


def _broker_of_serve(data: Path) -> str:
    record = read_record(data)
    parts = [] if record is None else record.parts
    return next((connectable(part.address) for part in parts if part.name == "broker" and part.address), "")
