"""Sessions of browsers: a signed cookie that names them until they expire, and tokens against cross-site requests.

The cookie is all there is: any console with the same secret accepts it. Another secret ends all sessions. That of a
user ends with any change of this user. Sessions that were ended by a logout are remembered by the console that ended
them; after a restart it accepts earlier sessions only if it has saved these.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from http.cookies import CookieError, SimpleCookie

import msgspec

from latermq.clock import Clock
from latermq.http.security.roles import Identity, Role
from latermq.http.security.sign_outs import SignOuts

MAX_COOKIE_CHARS = 4_096
# A session that seems to last longer was opened before the clock was set back, or with a longer session_timeout.
MAX_CLOCK_STEP_MS = 60_000
_ID_BYTES = 16
_SALT_BYTES = 16


class _Session(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What a cookie says."""

    id: str
    name: str
    role: int
    expires_ms: int
    version: str = ""  # of the user


class Sessions:
    """Opens, recognises and ends sessions."""

    def __init__(self, secret: str, timeout_ms: int, clock: Clock, sign_outs_path: str = "") -> None:
        """`secret` is what consoles share, from which the keys are derived."""
        self._key = _derived(secret, "session")
        self._csrf_key = _derived(secret, "csrf")
        self._timeout_ms = timeout_ms
        self._clock = clock
        self.sign_outs = SignOuts(sign_outs_path, timeout_ms, clock)
        # Browsers send cookies to every port of a host, so consoles with different tokens use different names.
        self.cookie_name = "latermq-session-" + hashlib.sha256(self._key).hexdigest()[:8]

    @property
    def timeout_s(self) -> int:
        """How long a session lasts."""
        return self._timeout_ms // 1000

    def open(self, identity: Identity) -> str:
        """Return the cookie of a new session."""
        session = _Session(
            secrets.token_hex(_ID_BYTES),
            identity.name,
            identity.role,
            self._clock.now_ms() + self._timeout_ms,
            identity.version,
        )
        payload = _word(msgspec.json.encode(session))
        return f"{payload}.{self._signature(payload)}"

    def identity_of(self, cookie_headers: list[str]) -> Identity | None:
        """Return whose session a request belongs to, or None if it has no valid one."""
        session = self._session(cookie_headers)
        return None if session is None else Identity(session.name, Role(session.role), session.id, session.version)

    async def end(self, cookie_headers: list[str]) -> None:
        """Refuse the session of a request from now on. Returns when that is saved."""
        session = self._session(cookie_headers)
        if session is not None:
            await self.sign_outs.add(session.id, session.expires_ms)

    def _session(self, cookie_headers: list[str]) -> _Session | None:
        cookie = self._cookie(cookie_headers)
        payload, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode(errors="replace"), self._signature(payload).encode()):
            return None
        try:
            session = msgspec.json.decode(_bytes_of(payload), type=_Session)
            Role(session.role)
        except (binascii.Error, ValueError):  # signed by another release
            return None
        left_ms = session.expires_ms - self._clock.now_ms()
        if not 0 < left_ms <= self._timeout_ms + MAX_CLOCK_STEP_MS:
            return None
        if self.sign_outs.is_ended(session.id, session.expires_ms):
            return None
        return session

    def csrf_token(self, session_id: str) -> str:
        """Return a token that proves that a request comes from a page of this session.

        Each one differs, because pages are compressed: a constant secret could be guessed from their length.
        """
        if not session_id:
            return ""
        salt = secrets.token_hex(_SALT_BYTES)
        return f"{salt}.{self._csrf_mac(session_id, salt)}"

    def is_csrf_token(self, session_id: str, token: str) -> bool:
        """Whether a token was issued to this session."""
        salt, _, mac = token[:MAX_COOKIE_CHARS].partition(".")
        return hmac.compare_digest(mac.encode(errors="replace"), self._csrf_mac(session_id, salt).encode())

    def _cookie(self, headers: list[str]) -> str:
        text = "; ".join(headers)
        if len(text) > MAX_COOKIE_CHARS or self.cookie_name not in text:
            return ""
        try:
            found = SimpleCookie(text).get(self.cookie_name)
        except CookieError:
            return ""
        return found.value if found is not None else ""

    def _signature(self, payload: str) -> str:
        return _word(hmac.digest(self._key, payload.encode(errors="replace"), "sha256"))

    def _csrf_mac(self, session_id: str, salt: str) -> str:
        text = f"{session_id} {salt}".encode(errors="replace")
        return _word(hmac.digest(self._csrf_key, text, "sha256"))


def _derived(secret: str, purpose: str) -> bytes:
    return hmac.digest(secret.encode(), f"latermq console {purpose}".encode(), "sha256")


def _word(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes_of(word: str) -> bytes:
    return base64.b64decode(word.encode("ascii") + b"=" * (-len(word) % 4), b"-_", validate=True)
