"""Bearer tokens: without the right one nothing but the health of the process is answered."""

import hashlib
import hmac
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from latermq.http.problems import HttpError, problem_response

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
_SCHEME = "bearer "


class TokenGuard:
    """Answers 401 to requests without the configured token. Without a configured token everything passes."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        # Digests have equal lengths, so the comparison takes the same time whatever is sent.
        self._digest = hashlib.sha256(token.encode()).digest() if token else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._digest and scope["path"] not in OPEN_PATHS:
            error = self._refusal(Headers(scope=scope).getlist("authorization"))
            if error is not None:
                await problem_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, credentials: list[str]) -> HttpError | None:
        is_bearer = len(credentials) == 1 and credentials[0][: len(_SCHEME)].lower() == _SCHEME
        sent = credentials[0][len(_SCHEME) :].strip() if is_bearer else ""
        digest = hashlib.sha256(sent.encode(errors="surrogateescape")).digest()
        if hmac.compare_digest(digest, self._digest) and is_bearer:
            return None
        return HttpError(
            HTTPStatus.UNAUTHORIZED,
            "the token is wrong" if is_bearer else "the request has no token",
            hint="Send `Authorization: Bearer TOKEN` with the value of http.token",
            headers={"WWW-Authenticate": "Bearer"},
        )
