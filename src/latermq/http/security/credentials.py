"""Credentials: a user with its secret, a bearer token, or a browser's session.

Without them only the health and the sign-in page are answered.
"""

import base64
import binascii
from http import HTTPStatus
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from latermq.addresses import plain_ip
from latermq.errors import LaterMQError
from latermq.http.access_log import STATIC_PREFIX
from latermq.http.problems import HttpError, problem_response
from latermq.http.security.roles import EVERYBODY, NOBODY, Identity, set_identity
from latermq.http.security.sessions import Sessions
from latermq.http.security.sign_in import SignIn
from latermq.http.security.token import LOGIN_PATH, OPEN_PATHS

_BEARER, _BASIC = "bearer", "basic"
_MAX_BASIC_CHARS = 4_096
_OF_BROWSERS = ("GET", "POST")  # methods of links and forms


class CredentialsGuard:
    """Notes who sends a request. Answers 401 to programs without credentials, and shows browsers the sign-in page."""

    def __init__(self, app: ASGIApp, sign_in: SignIn, sessions: Sessions) -> None:
        self._app = app
        self._sign_in = sign_in
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                found = await self._identify(scope, Headers(scope=scope))
            except LaterMQError as error:
                found = problem_response(error)
            if not isinstance(found, Identity):
                await found(scope, receive, send)
                return
            set_identity(scope, found)
        await self._app(scope, receive, send)

    async def _identify(self, scope: Scope, headers: Headers) -> Identity | Response:
        if not self._sign_in.is_needed:
            return EVERYBODY
        path, source = scope["path"], source_of(scope)
        is_open = path in OPEN_PATHS or path == LOGIN_PATH or path.startswith(STATIC_PREFIX)
        credentials = headers.getlist("authorization")
        try:
            if credentials:
                identity = await self._authorized(credentials, source)
            else:
                session = self._sessions.identity_of(headers.getlist("cookie"))
                identity = self._sign_in.resumed(session, source) if session is not None else None
        except LaterMQError:
            if not is_open:
                raise
            identity = None  # the users are not known yet; the health does not depend on them
        if identity is not None:
            return identity
        return NOBODY if is_open else self._refusal(scope, headers, bool(credentials))

    async def _authorized(self, credentials: list[str], source: str) -> Identity | None:
        scheme, _, content = credentials[0].partition(" ")
        if len(credentials) != 1:
            return None
        if scheme.lower() == _BEARER and self._sign_in.has_token:
            return await self._sign_in.by_token(content.strip(), source)
        if scheme.lower() == _BASIC and self._sign_in.has_users:
            return await self._sign_in.by_secret(*_basic(content.strip()), source)
        return None

    def _refusal(self, scope: Scope, headers: Headers, has_credentials: bool) -> Response:
        if not has_credentials and scope["method"] in _OF_BROWSERS and "text/html" in headers.get("accept", ""):
            query = scope.get("query_string", b"").decode("latin-1")
            wanted = scope["path"] + (f"?{query}" if query else "")
            if scope["method"] != "GET":  # a form of a session that has ended
                wanted = "/"
            return RedirectResponse(f"{LOGIN_PATH}?next={quote(wanted, safe='')}", HTTPStatus.SEE_OTHER)
        return problem_response(self._unauthorized(has_credentials))

    def _unauthorized(self, has_credentials: bool) -> HttpError:
        by_token = "Send `Authorization: Bearer TOKEN` with the value of http.token"
        if not self._sign_in.has_users:
            message = "the token is wrong" if has_credentials else "the request has no token"
            return _error(message, by_token, "Bearer")
        message = (
            "the user or the secret is wrong, or the user is disabled" if has_credentials else "the request has no user"
        )
        # No `Basic` for browsers: their dialog would hide the sign-in page, and they would keep the secret.
        return _error(message, "Send the user and its secret: curl --user NAME:SECRET", 'LaterMQ realm="latermq"')


def source_of(scope: Scope) -> str:
    """Return the address that a request comes from."""
    peer = scope.get("client")
    return plain_ip(peer[0]) if peer else ""


def _error(message: str, hint: str, scheme: str) -> HttpError:
    return HttpError(HTTPStatus.UNAUTHORIZED, message, hint=hint, headers={"WWW-Authenticate": scheme})


def _basic(content: str) -> tuple[str, str]:
    """Return the user and the secret; empty ones, which no user has, if they cannot be read."""
    try:
        text = base64.b64decode(content[:_MAX_BASIC_CHARS], validate=True).decode()
    except (binascii.Error, ValueError):
        return "", ""
    name, _, secret = text.partition(":")
    return name, secret
