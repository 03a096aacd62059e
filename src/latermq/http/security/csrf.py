"""Changes that a session requests must come from a page of that session, which a token in the request proves."""

from http import HTTPStatus
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from latermq.http.problems import HttpError, problem_response
from latermq.http.security.origins import SAFE_METHODS
from latermq.http.security.roles import identity_of
from latermq.http.security.sessions import Sessions

HEADER = "X-CSRF-Token"
FIELD = "csrf"
FORM = "application/x-www-form-urlencoded"
_MAX_FIELDS = 100


class CsrfGuard:
    """Refuses changes of sessions without the token, in a header or in a field of the form."""

    def __init__(self, app: ASGIApp, sessions: Sessions) -> None:
        """It stands behind the guard that reads the whole body."""
        self._app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS or not identity_of(scope).session:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        token = headers.get(HEADER, "")
        if not token and headers.get("content-type", "").partition(";")[0].strip().lower() == FORM:
            first = await receive()
            token = _field(first.get("body", b""))
            receive = _replaying(first, receive)
        if self._sessions.is_csrf_token(identity_of(scope).session, token):
            await self._app(scope, receive, send)
            return
        error = HttpError(
            HTTPStatus.FORBIDDEN,
            "the request does not come from a page of this session",
            hint=f"Reload the page, or send a token from it in the header {HEADER}",
        )
        await problem_response(error)(scope, receive, send)


def _field(body: bytes) -> str:
    try:
        return parse_qs(body.decode(), max_num_fields=_MAX_FIELDS).get(FIELD, [""])[0]
    except ValueError:
        return ""


def _replaying(first: Message, receive: Receive) -> Receive:
    messages = [first]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
