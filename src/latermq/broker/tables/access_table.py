"""The users of a broker: loaded at the start, changed by administrators, saved as one file.

A change is saved first and then in effect, so what cannot be saved never counts.
"""

import threading
from collections.abc import Callable

from latermq.access.access_file import ACCESS_PATH, Seal, decode_access, encode_access, new_seal
from latermq.access.changes import Editor, Limits, UserChange
from latermq.access.secret_box import RandomBytes
from latermq.access.users import NO_USERS, AccessState
from latermq.config import AccessConfig
from latermq.errors import ConfigError, StoreError
from latermq.store.files.disk import Disk


class AccessTable:
    """The state that is in effect, and the file with it."""

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
        self.state = NO_USERS
        self._seal: Seal | None = None
        self._init_user = ""  # the one that a start has created, or found
        data = disk.read(ACCESS_PATH)
        if data is not None:
            self.state, self._seal, self._init_user = decode_access(data, key_text, random_bytes)
        self.deleted_init_user = ""  # the user of the setting, if it was deleted
        self._saved = None if data is None else self.state
        self.has_failed_undo = False  # the file may have a state that never was in effect
        state, is_changed = self._with_init_user(config.init_user)
        if key_text and self._seal is None:
            self._seal = new_seal(key_text, random_bytes)
            is_changed |= data is not None
        if is_changed:
            self.write(state)
            self.state = state

    @property
    def has_super_user(self) -> bool:
        """Whether any user could administer the broker."""
        return any(user.is_super for user in self.state.users.values())

    def require_super_user(self) -> None:
        """Raise ConfigError if no user could administer the broker."""
        if not self.has_super_user:
            raise ConfigError(
                "access.enabled is set, and there is no super user",
                hint="Create one: latermq user create NAME --super --data DIR; or set "
                "LATERMQ_ACCESS_INIT_USER=NAME:PASSWORD for the first start",
            )

    @property
    def is_sealed(self) -> bool:
        """Whether the secrets in the file are encrypted."""
        return self._seal is not None

    def _with_init_user(self, init_user: str) -> tuple[AccessState, bool]:
        """The state with the user of the setting, and whether the file must be written.

        The user is created once. If it was deleted since, it stays deleted as long as there is another super user.
        """
        name, _, secret = init_user.partition(":")
        if not name:
            return self.state, False
        is_first, self._init_user = name != self._init_user, name
        if name in self.state.users:
            return self.state, is_first
        if not is_first and self.has_super_user:
            self.deleted_init_user = name
            return self.state, False
        change = UserChange(secret=secret, is_super=True)
        return self.editor.create_user(self.state, name, change, by_super=True), True

    def change(self, change: Callable[[AccessState], AccessState]) -> None:
        """Change the users at once: for callers that are alone."""
        state = change(self.state)
        self.write(state)
        self.state = state

    def write(self, state: AccessState) -> None:
        """Save a state that is not in effect yet, off the loop. After an error, the file has the previous one."""
        with self._saving:
            data = encode_access(state, self._seal, self._init_user)
            try:
                self._disk.replace(ACCESS_PATH, data)
            except StoreError:
                self._undo(data)
                raise
            self._saved, self.has_failed_undo = state, False

    def mend(self) -> None:
        """Restore the file after a failed change could not be undone. Called off the loop."""
        with self._saving:
            if self.has_failed_undo:
                self._restore()
                self.has_failed_undo = False

    def _undo(self, data: bytes) -> None:
        """Take back what was written. It is in the file if only the last step failed, which makes the name durable."""
        try:
            if self.has_failed_undo or self._disk.read(ACCESS_PATH) == data:
                self._restore()
        except (StoreError, OSError) as error:
            self.has_failed_undo = True
            raise StoreError(
                f"cannot write {ACCESS_PATH}, nor restore it: a restart may bring this change into effect",
                hint="Check the disk. The broker restores the file when it can, and the change can be made again",
            ) from error

    def _restore(self) -> None:
        if self._saved is None:
            self._disk.remove(ACCESS_PATH)
        else:
            self._disk.replace(ACCESS_PATH, encode_access(self._saved, self._seal, self._init_user))

    def statistics(self) -> dict[str, int]:
        """The number of users, and of the entries of the user with the most."""
        return {
            "access_users": len(self.state.users),
            "access_entries": max(map(len, self.state.acls.values()), default=0),
        }
