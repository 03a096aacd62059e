"""The users of a broker process: their table, the check of every request, and the requests about them."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import structlog

from latermq.access.inner_credentials import inner_file, load_or_create_inner_secret
from latermq.access.secret_box import SecretBox, check_key_text, inner_key
from latermq.access.users import INNER_USER, User
from latermq.audit.audit_log import NO_AUDIT, AuditLog, open_audit
from latermq.broker.tables.access_table import AccessTable
from latermq.clock import Clock
from latermq.config import AccessConfig, Config
from latermq.errors import ConfigError
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.request_decoder import decode_request, decode_signed_request
from latermq.server.access.guard import AccessGuard
from latermq.server.access.users import NO_REFUSALS
from latermq.server.handlers.admin.access_copies import NO_COPIES, AccessCopies
from latermq.server.handlers.admin.access_requests import CODES, AccessRequests
from latermq.server.handlers.admin.context import TableSaves
from latermq.server.handlers.async_replies import RunOffLoop
from latermq.server.handlers.broker_service import BrokerService
from latermq.store.files.disk import Disk

KEY_VARIABLE = "LATERMQ_SECRET_KEY"
_REVISION_BYTES = 16
_log = structlog.get_logger(__name__)


def inner_user(secret: str) -> User:
    """The user that LaterMQ's own processes sign as."""
    return User(name=INNER_USER, secret=secret, is_super=True)


def open_users(disk: Disk, config: AccessConfig) -> AccessTable:
    """The users in a data directory."""
    key = key_text(config)
    return AccessTable(disk, config, key, lambda: secrets.token_hex(_REVISION_BYTES), secrets.token_bytes)


class AccessControl:
    """The parts of a broker's access check. While `access.enabled` is off, there are none."""

    def __init__(self, config: Config, disk: Disk, data: Path, clock: Clock) -> None:
        self.table: AccessTable | None = None
        self.guard: AccessGuard | None = None
        self._copies: AccessCopies | None = None
        self._audit: AuditLog | None = None
        self._access = access = config.access
        if not access.enabled:
            return
        self.table = open_users(disk, access)
        self.table.require_super_user()
        path = inner_file(access, data)
        assert path is not None, "a broker has a data directory"
        secret = load_or_create_inner_secret(path)
        self._copies = AccessCopies(self.table.state, SecretBox(inner_key(secret), secrets.token_bytes))
        is_enforced = access.mode == "enforce"
        self._audit = open_audit(config.audit, data, f"broker {config.broker.name}", clock)
        self.guard = AccessGuard(
            self.table,
            inner_user(secret),
            config.broker.cluster,
            clock,
            is_enforced=is_enforced,
            admin_plaintext=access.admin_plaintext,
            always_enforced=CODES,
            audit=self._audit,
        )
        if self.table.deleted_init_user:
            _log.warning(
                "the user of access.init_user was deleted, and is not created again",
                user=self.table.deleted_init_user,
                hint="Remove the setting, or create the user: latermq user create NAME --super",
            )
        _log.info("users checked", users=len(self.table.state.users), mode=access.mode, sealed=self.table.is_sealed)

    @property
    def decode(self) -> Callable[[int, bytes, bytes], Command]:
        """How requests are decoded: signatures cover fields that are otherwise dropped."""
        return decode_request if self.guard is None else decode_signed_request

    def install(self, service: BrokerService, saves: TableSaves) -> None:
        """Serve the requests about users, and check all requests."""
        table = service.table
        table.add(AccessRequests(self.table, saves, self.guard, self._copies).endpoints)
        if self._copies is not None:
            service.on_lost.append(self._copies.on_disconnect)
        if self.guard is not None:
            table.set_guard(self.guard)

    def mend(self, run_off_loop: RunOffLoop) -> None:
        """Restore the file of users if a failed change could not be undone."""
        if self.table is not None and self.table.has_failed_undo:
            run_off_loop([self.table.mend], lambda _: None)

    def finish(self) -> None:
        """Answer the requests that wait, before the connections are closed."""
        if self._copies is not None:
            self._copies.stop()

    def start(self) -> None:
        """Begin to write the audit log."""
        if self._audit is not None:
            self._audit.start()

    def stop(self) -> None:
        """Write what is left of the audit log. No request is served any more."""
        if self._audit is not None:
            self._audit.stop()

    def statistics(self) -> dict[str, int]:
        """Counts of users and of refusals."""
        users = self.table.statistics() if self.table is not None else {"access_users": 0, "access_entries": 0}
        guard = self.guard.statistics() if self.guard is not None else NO_REFUSALS
        copies = self._copies.statistics() if self._copies is not None else NO_COPIES
        return users | guard | copies | (self._audit.statistics() if self._audit is not None else NO_AUDIT)


def key_text(config: AccessConfig) -> str:
    """The operator's key for the users' secrets. Empty if there is none."""
    text = os.environ.get(KEY_VARIABLE, "")
    if not text and config.key_file:
        try:
            text = Path(config.key_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the key {config.key_file}: {error}", hint="Check access.key_file") from None
    return check_key_text(text) if text else ""
