"""The access check of a process that copies the users from a broker: a name server or a proxy."""

from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from latermq.access.inner_credentials import inner_file, load_or_create_inner_secret
from latermq.access.users import INNER_USER, User
from latermq.audit.audit_log import NO_AUDIT, AuditLog, open_audit
from latermq.client.access.copied_users import CopiedUsers
from latermq.client.session.connection import Connections
from latermq.client.session.credentials import Credentials
from latermq.clock import Clock
from latermq.config import Config
from latermq.errors import ConfigError

_log = structlog.get_logger(__name__)


class CopiedAccess:
    """The inner user, the copy of the users, and the audit log. Call `open`, `start` and `close` once each."""

    def __init__(self, config: Config, data: Path | None, part: str, clock: Clock) -> None:
        """`part` names the process in the audit log. Raises ConfigError if there is no inner secret."""
        path = inner_file(config.access, data)
        if path is None:
            raise ConfigError(
                f"access.enabled is set, and the {part} has no inner secret",
                hint="Copy latermq.inner from the data directory of a broker, and set access.inner_file to its path",
            )
        self._secret = load_or_create_inner_secret(path)
        self._every_s = config.access.copy_every / 1000
        self.credentials = Credentials(INNER_USER, self._secret)
        self.inner = User(name=INNER_USER, secret=self._secret, is_super=True)
        self.is_enforced = config.access.mode == "enforce"
        self.audit: AuditLog | None = None
        folder = data if data is not None else Path(config.audit.folder) if config.audit.folder else None
        if folder is None:
            _log.warning("no audit log is written", hint="Set audit.folder, or give the process a data directory")
        else:
            self.audit = open_audit(config.audit, folder, part, clock)
        self.users: CopiedUsers

    def open(self, connections: Connections, addresses: Callable[[], Iterable[str]]) -> CopiedUsers:
        """Return the users, not copied yet. `connections` must sign with the credentials."""
        self.users = CopiedUsers(connections, addresses, self._secret, self._every_s)
        return self.users

    def start(self) -> None:
        """Begin to copy the users and to write the audit log."""
        if self.audit is not None:
            self.audit.start()
        self.users.start()

    async def close(self) -> None:
        """Stop copying, and write what is left of the audit log."""
        await self.users.close()
        if self.audit is not None:
            self.audit.stop()

    def statistics(self) -> dict[str, int]:
        return self.users.statistics() | (self.audit.statistics() if self.audit is not None else NO_AUDIT)


NO_COPY = {"access_users": 0, "access_entries": 0, "access_copy_age_s": 0, "access_copy_failures": 0, **NO_AUDIT}
