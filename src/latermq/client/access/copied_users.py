"""The users of a name server or a proxy: a copy of a broker's.

A question for changed users waits at the broker until there are some, or for a second, so changes follow at once.

Brokers keep the users. The copy is sealed with the inner secret and contains the random text of the question, so no
other process can give a wrong or an old one. If no broker answers, the last copy stays in use.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable

import structlog

from latermq.access.access_file import decode_access
from latermq.access.secret_box import SecretBox, inner_key
from latermq.access.users import NO_USERS, AccessState
from latermq.client.session.connection import Connections
from latermq.errors import LaterMQError
from latermq.protocol.remoting.codes import Request

CALL_TIMEOUT_S = 2.0
FIRST_EVERY_S = 0.1  # while there is no copy yet
_AFTER_CHANGE_S = 0.01  # between many changes in a row
_NONCE_BYTES = 16
_LARGE_BYTES = 64 * 1024  # takes a millisecond to decode; larger ones are decoded on a thread
_NO_BROKER = "no broker is registered"
_log = structlog.get_logger(__name__)


class CopiedUsers:
    """The copy. Call `start` and `close` once each."""

    def __init__(
        self,
        connections: Connections,
        addresses: Callable[[], Iterable[str]],
        secret: str,
        every_s: float,
    ) -> None:
        """`addresses` are those of the brokers, `connections` sign with the inner secret."""
        self.state: AccessState = NO_USERS
        self.trouble = _NO_BROKER
        self.on_change: list[Callable[[], None]] = []
        self._connections = connections
        self._addresses = addresses
        self._box = SecretBox(inner_key(secret), secrets.token_bytes)
        self._every_s = every_s
        self._source = ""  # the broker that answered last; it is preferred, as brokers may differ for a moment
        self._confirmed_s = time.monotonic()
        self._failure = ""
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def statistics(self) -> dict[str, int]:
        """The users, the entries of the user with the most, how long ago a broker confirmed them, and failures."""
        return {
            "access_users": len(self.state.users),
            "access_entries": max(map(len, self.state.acls.values()), default=0),
            "access_copy_age_s": int(time.monotonic() - self._confirmed_s),
            "access_copy_failures": self._failures,
        }

    async def refresh(self) -> None:
        """Ask the brokers in turn until one answers."""
        addresses = list(self._addresses())
        if self._source in addresses:
            addresses.remove(self._source)
            addresses.insert(0, self._source)
        failure = _NO_BROKER
        for address in addresses:
            try:
                await self._copy_from(address)
            except (LaterMQError, ValueError) as error:
                failure = f"{address}: {error.remark if isinstance(error, LaterMQError) else error}"
                continue
            self._source = address
            self._confirmed_s = time.monotonic()
            self._report("")
            return
        self._failures += 1
        if self.trouble:
            self.trouble = failure
        self._report(failure)

    async def _copy_from(self, address: str) -> None:
        nonce = secrets.token_hex(_NONCE_BYTES)
        wait_s = 0.0 if self.trouble or self._failure else self._every_s
        fields = {"revision": self.state.revision, "nonce": nonce, "waitMillis": str(int(wait_s * 1000))}
        timeout_s = CALL_TIMEOUT_S + wait_s
        reply = await self._connections.call(address, Request.ACCESS_STATE, fields, timeout_s=timeout_s)
        data = self._box.open(reply.body, nonce.encode())
        if data:
            if len(data) > _LARGE_BYTES:
                state = (await asyncio.to_thread(decode_access, data, "", secrets.token_bytes)).state
            else:
                state = decode_access(data, "", secrets.token_bytes).state
            self.state = state
            _log.info("users copied", broker=address, users=len(state.users))
        is_first, self.trouble = bool(self.trouble), ""
        if data or is_first:
            for on_change in self.on_change:
                on_change()

    async def _run(self) -> None:
        while True:
            asked_s, asked_with = time.monotonic(), self.state
            await self.refresh()
            if self.trouble:
                pause_s = min(FIRST_EVERY_S, self._every_s)
            elif self.state is not asked_with:
                pause_s = _AFTER_CHANGE_S
            else:  # the question itself may have waited that long
                pause_s = max(0.0, asked_s + self._every_s - time.monotonic())
            await asyncio.sleep(pause_s)

    def _report(self, failure: str) -> None:
        """Log that no broker answers, and that one answers again, once each."""
        if failure and not self._failure and not self.trouble:
            _log.warning("users are not confirmed; the last copy stays in use", reason=failure)
        elif self._failure and not failure:
            _log.info("users are confirmed again", broker=self._source)
        if not self.trouble or not failure:
            self._failure = failure
