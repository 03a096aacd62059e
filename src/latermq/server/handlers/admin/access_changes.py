"""Changes of users that wait for the disk. They are in effect once they are saved, in the order of their requests.

A change is derived from the one before it, which may still be waiting. If that one cannot be saved, both are refused.
"""

import itertools
from collections.abc import Callable

import structlog

from latermq.access.users import AccessState
from latermq.broker.tables.access_table import AccessTable
from latermq.errors import LaterMQError, StoreError
from latermq.server.handlers.admin.context import TableSaves
from latermq.server.handlers.async_replies import WhenDone

_log = structlog.get_logger(__name__)


class AccessChanges:
    """Saves changes in rounds: one write serves all changes that wait when it starts."""

    def __init__(
        self,
        table: AccessTable,
        saves: TableSaves,
        prepare: Callable[[AccessState], None],
        on_changed: Callable[[], None],
    ) -> None:
        """`prepare` gets a state off the loop before it is saved. `on_changed`: the last such state is in effect."""
        self._table = table
        self._saves = saves
        self._prepare = prepare
        self._on_changed = on_changed
        self._numbers = itertools.count(1)
        self._newest = (0, table.state)
        self._written = (0, table.state)
        self._refused_upto = 0
        self._failure: LaterMQError | None = None

    @property
    def newest(self) -> AccessState:
        """The state after all changes that are waiting."""
        return self._newest[1]

    def make(self, state: AccessState, when_done: WhenDone, reply_bytes: int) -> None:
        """Save a state that was derived from the newest one, and bring it into effect."""
        number = next(self._numbers)
        self._newest = (number, state)

        def done(error: LaterMQError | None) -> None:
            when_done(self._settle(number, error))

        self._saves.save([self._write], done, reply_bytes)

    def _write(self) -> None:
        """Save the newest state. Off the loop, where failures of other tables in the same round do not count."""
        newest = self._newest
        if newest == self._written:
            return
        try:
            self._prepare(newest[1])
            self._table.write(newest[1])
        except StoreError as error:
            self._failure = error
            _log.error("users not saved", reason=error.remark)
        else:
            self._written = newest

    def _settle(self, number: int, error: LaterMQError | None) -> LaterMQError | None:
        """Bring what was written into effect, or return why it is not."""
        if number > self._refused_upto and self._written[0] >= number:
            if self._table.state is not self._written[1]:
                self._table.state = self._written[1]
                self._on_changed()
            return None
        if number > self._refused_upto:  # then those that were derived from it are void, too
            self._refused_upto = self._newest[0]
            self._newest = (next(self._numbers), self._table.state)
        return self._failure or error or LaterMQError("the users could not be saved")
