"""The users of a broker: loaded at the start, changed by administrators, saved as one file."""

import threading
from collections.abc import Callable

from latermq.access.access_file import ACCESS_PATH, Seal, decode_access, encode_access, new_seal
from latermq.access.changes import Editor, Limits, UserChange
from latermq.access.secret_box import RandomBytes
from latermq.access.users import NO_USERS, AccessState
from latermq.config import AccessConfig
from latermq.errors import ConfigError
from latermq.store.files.disk import Disk


class AccessTable:
    """The current state, and the file with it. A change is in effect at once, and confirmed when it is saved."""

    trouble = ""  # a broker always knows its users

    def __init__(
        self,
        disk: Disk,
        config: AccessConfig,
        key_text: str,
        new_revision: Callable[[], str],
        random_bytes: RandomBytes,
    ) -> None:
        """Read the users, and create the file at the first start. `key_text` is empty if the operator gave no key."""
        self._disk = disk
        self._saving = threading.Lock()
        self.editor = Editor(Limits(config.max_users, config.max_entries), new_revision)
        self.state: AccessState = NO_USERS
        self._seal: Seal | None = None
        data = disk.read(ACCESS_PATH)
        if data is not None:
            self.state, self._seal = decode_access(data, key_text, random_bytes)
        self._saved_revision = self.state.revision
        is_new_seal = bool(key_text) and self._seal is None
        if is_new_seal:
            self._seal = new_seal(key_text, random_bytes)
        self._add_init_user(config.init_user)
        if (is_new_seal and data is not None) or self.is_unsaved:
            self.save()

    def require_super_user(self) -> None:
        """Raise ConfigError if no user could administer the broker."""
        if not any(user.is_super for user in self.state.users.values()):
            raise ConfigError(
                "access.enabled is set, and there is no super user",
                hint="Create one: latermq user create NAME --super --data DIR; or set "
                "LATERMQ_ACCESS_INIT_USER=NAME:PASSWORD for the first start",
            )

    @property
    def is_sealed(self) -> bool:
        """Whether the secrets in the file are encrypted."""
        return self._seal is not None

    @property
    def is_unsaved(self) -> bool:
        return self.state.revision != self._saved_revision

    def _add_init_user(self, init_user: str) -> None:
        name, _, secret = init_user.partition(":")
        if name and name not in self.state.users:
            change = UserChange(secret=secret, is_super=True)
            self.state = self.editor.create_user(self.state, name, change, by_super=True)

    def save(self) -> None:
        """Write the current state. Called off the loop, too."""
        with self._saving:
            state = self.state
            self._disk.replace(ACCESS_PATH, encode_access(state, self._seal))
            self._saved_revision = state.revision

    def statistics(self) -> dict[str, int]:
        """The number of users, and of the entries of the user with the most."""
        return {
            "access_users": len(self.state.users),
            "access_entries": max(map(len, self.state.acls.values()), default=0),
        }
