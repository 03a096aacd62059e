"""What the access checks of all servers do with a refusal: count it, let failed attempts wait, note and log it."""

from collections.abc import Mapping

import structlog

from latermq.access.failed_attempts import FailedAttempts
from latermq.access.policies import NO_ACL
from latermq.audit.records import Result
from latermq.clock import Clock
from latermq.errors import LaterMQError, NoPermission
from latermq.server.access.audit import RequestAudit
from latermq.server.access.users import NotAuthenticated, NotPermitted, UnknownUser

LOG_EVERY_S = 60.0
MAX_LOGGED = 1_000
_log = structlog.get_logger(__name__)


class Refusals:
    """The refusals of one server."""

    def __init__(self, clock: Clock, audit: RequestAudit, kind: str) -> None:
        """`kind` is what log lines call a request of this server."""
        self._clock = clock
        self._audit = audit
        self._kind = kind
        self._failed_attempts = FailedAttempts()
        self._logged: dict[str, float] = {}
        self._unauthenticated = 0
        self._unauthorized = 0

    def failed_attempt(self, ip: str) -> float:
        """Count a failure to authenticate, and return how long its client must wait."""
        self._unauthenticated += 1
        return self._failed_attempts.note(ip, self._clock.monotonic_s())

    def unauthorized(self, error: LaterMQError) -> None:
        """Count another refusal."""
        self._unauthorized += isinstance(error, NoPermission)

    def note(
        self, request: str, peer: tuple[str, int], error: LaterMQError, result: Result,
        details: Mapping[str, str], *, is_administrative: bool,
    ) -> None:  # fmt: skip
        """Write a refusal to the audit log."""
        if isinstance(error, NotPermitted):
            self._audit.refused(
                request, error.user, error.acl, peer, error.checked, error.message, details, result,
                is_administrative=is_administrative,
            )  # fmt: skip
        elif isinstance(error, NotAuthenticated):
            self._audit.refused(request, None, NO_ACL, peer, None, reason_of(error), details, result)

    def log_only(self, request: str, peer_name: str, error: LaterMQError) -> None:
        """Log and count a request that would be refused. Each kind of refusal is logged once in a while."""
        self._unauthorized += 1
        now_s = self._clock.monotonic_s()
        key = f"{request} {error.message}"
        if now_s - self._logged.get(key, float("-inf")) < LOG_EVERY_S:
            return
        if len(self._logged) >= MAX_LOGGED:
            self._logged.clear()
        self._logged[key] = now_s
        _log.warning(f"{self._kind} would be rejected", peer=peer_name, reason=error.message, **{self._kind: request})

    def statistics(self) -> dict[str, int]:
        """Refusals since the start, and addresses with failed attempts."""
        return {
            "unauthenticated_requests": self._unauthenticated,
            "unauthorized_requests": self._unauthorized,
            "failing_addresses": len(self._failed_attempts),
        }


def reason_of(error: NotAuthenticated) -> str:
    """What is counted, without the name that an untrusted client has made up."""
    return "the user is not known" if isinstance(error, UnknownUser) else error.message
