"""Checks of Host and Origin: pages of other sites cannot reach the API through the browser of an operator.

A page can make its own name resolve to this machine (DNS rebinding); its requests then carry that name as Host. It can
also post a form to this address; that request carries its own Origin.
"""

import ipaddress
from collections.abc import Iterable
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from latermq.http.problems import HttpError, problem_response

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_SHOWN_CHARS = 100


class OriginGuard:
    """Refuses requests under a name that is not this process's, and changes that another site's page requests."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        """`names` are the host names under which clients reach this process, besides `localhost` and addresses."""
        self._app = app
        self._names = frozenset({"localhost", *(name.lower() for name in names)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope["method"], Headers(scope=scope))
            except HttpError as error:
                await problem_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, method: str, headers: Headers) -> None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            shown = ", ".join(hosts)[:_SHOWN_CHARS]
            raise HttpError(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"this process is not {shown!r}",
                hint="Use an address or localhost, or add the name to http.hosts",
            )
        if method in SAFE_METHODS:
            return
        site = headers.get("sec-fetch-site", "none")
        origin = headers.get("origin")
        is_foreign = origin is not None and _authority(origin) != hosts[0].lower()
        if is_foreign or site not in ("same-origin", "none"):
            raise HttpError(
                HTTPStatus.FORBIDDEN,
                "a page of another site may not change anything here",
                hint="Open the console under the same address, or send the request without a browser",
            )

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # a browser sends an address only if the user has opened that address


def _authority(origin: str) -> str:
    """Return the part of an Origin that is comparable with a Host."""
    return origin.partition("://")[2].lower()
