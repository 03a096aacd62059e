"""The application: the route table behind the checks that every request passes."""

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from latermq.clock import Clock
from latermq.config import HttpConfig
from latermq.http.access_log import AccessLog
from latermq.http.problems import HttpError, internal_error, problem_response
from latermq.http.security.credentials import CredentialsGuard
from latermq.http.security.csrf import CsrfGuard
from latermq.http.security.origins import OriginGuard
from latermq.http.security.rates import RateGuard, Rates
from latermq.http.security.requests_in_progress import RequestsInProgress
from latermq.http.security.sessions import Sessions
from latermq.http.security.sign_in import SignIn

Refusal = Callable[[Request, HttpError], Response]


class ConsoleApp:
    """An ASGI application. The first check is the outermost: what it refuses costs the others nothing."""

    def __init__(
        self,
        config: HttpConfig,
        clock: Clock,
        routes: Sequence[BaseRoute],
        sign_in: SignIn,
        sessions: Sessions,
        error_page: Refusal,
    ) -> None:
        """`routes` are those of the API and of pages. `error_page` answers browsers that open an unknown path."""
        router = Starlette(routes=routes, exception_handlers={HTTPException: _refusing(error_page), Exception: _fail})
        router.router.redirect_slashes = False
        self.rates = Rates(clock, config.rate, config.max_rate_clients)
        self.in_progress = RequestsInProgress(CsrfGuard(router, sessions), config)
        guarded: ASGIApp = CredentialsGuard(self.in_progress, sign_in, sessions)
        guarded = OriginGuard(
            guarded, [config.host, *(name.strip() for name in config.hosts.split(";") if name.strip())]
        )
        self.access_log = AccessLog(RateGuard(guarded, self.rates), clock)
        self.asgi: ASGIApp = self.access_log


def _refusing(error_page: Refusal) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Answer what the router refuses: an unknown path, or a method that a path does not have."""

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        hint = f"Allowed: {headers['Allow']}" if "Allow" in headers else "/openapi.json lists all paths"
        problem = HttpError(
            HTTPStatus(error.status_code), f"{request.method} {request.url.path[:200]}", hint=hint, headers=headers
        )
        is_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
        return error_page(request, problem) if is_page else problem_response(problem)

    return refuse


async def _fail(request: Request, error: Exception) -> Response:
    """Answer a request that met a defect, which the access log writes."""
    return internal_error()
