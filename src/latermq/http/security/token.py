"""Credentials: a bearer token or a browser's session. Without them only the health and the login page are answered."""

import hashlib
import hmac
from http import HTTPStatus
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from latermq.http.access_log import STATIC_PREFIX
from latermq.http.problems import HttpError, problem_response
from latermq.http.security.roles import EVERYBODY, NOBODY, Identity, Role, Users, set_identity
from latermq.http.security.sessions import Sessions

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
LOGIN_PATH = "/login"
_SCHEME = "bearer "


class SharedToken(Users):
    """Everybody who knows the configured token, which makes an administrator."""

    def __init__(self, token: str) -> None:
        # Digests have equal lengths, so the comparison takes the same time whatever is sent.
        self._digest = hashlib.sha256(token.encode()).digest()

    def identify(self, secret: str) -> Identity | None:
        digest = hashlib.sha256(secret.encode(errors="surrogateescape")).digest()
        return Identity("admin", Role.ADMIN) if hmac.compare_digest(digest, self._digest) else None


class TokenGuard:
    """Notes who sends a request. Answers 401 to programs without credentials, and sends browsers to the login page."""

    def __init__(self, app: ASGIApp, users: Users | None, sessions: Sessions) -> None:
        """Without users, everything passes."""
        self._app = app
        self._users = users
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            found = self._identify(scope, Headers(scope=scope))
            if not isinstance(found, Identity):
                await found(scope, receive, send)
                return
            set_identity(scope, found)
        await self._app(scope, receive, send)

    def _identify(self, scope: Scope, headers: Headers) -> Identity | Response:
        if self._users is None:
            return EVERYBODY
        credentials = headers.getlist("authorization")
        identity = self._bearer(credentials) if credentials else self._sessions.identity_of(headers.getlist("cookie"))
        if identity is not None:
            return identity
        path = scope["path"]
        if path in OPEN_PATHS or path == LOGIN_PATH or path.startswith(STATIC_PREFIX):
            return NOBODY
        return _refusal(scope, headers, bool(credentials))

    def _bearer(self, credentials: list[str]) -> Identity | None:
        assert self._users is not None
        if len(credentials) != 1 or credentials[0][: len(_SCHEME)].lower() != _SCHEME:
            return None
        return self._users.identify(credentials[0][len(_SCHEME) :].strip())


def _refusal(scope: Scope, headers: Headers, has_credentials: bool) -> Response:
    if not has_credentials and scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
        query = scope.get("query_string", b"").decode("latin-1")
        wanted = scope["path"] + (f"?{query}" if query else "")
        return RedirectResponse(f"{LOGIN_PATH}?next={quote(wanted, safe='')}", HTTPStatus.SEE_OTHER)
    error = HttpError(
        HTTPStatus.UNAUTHORIZED,
        "the token is wrong" if has_credentials else "the request has no token",
        hint="Send `Authorization: Bearer TOKEN` with the value of http.token",
        headers={"WWW-Authenticate": "Bearer"},
    )
    return problem_response(error)
