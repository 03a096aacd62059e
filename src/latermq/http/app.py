"""The application: the route table behind the checks that every request passes."""

from collections.abc import Sequence
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
from latermq.http.problems import HttpError, problem_response
from latermq.http.security.origins import OriginGuard
from latermq.http.security.rates import RateGuard, Rates
from latermq.http.security.requests_in_progress import RequestsInProgress
from latermq.http.security.token import TokenGuard


class ConsoleApp:
    """An ASGI application. The first check is the outermost: what it refuses costs the others nothing."""

    def __init__(self, config: HttpConfig, clock: Clock, routes: Sequence[BaseRoute]) -> None:
        """`routes` are those of the API, and of pages."""
        router = Starlette(routes=routes, exception_handlers={HTTPException: _refuse})
        router.router.redirect_slashes = False
        self.rates = Rates(clock, config.rate, config.max_rate_clients)
        self.in_progress = RequestsInProgress(router, config)
        guarded: ASGIApp = TokenGuard(self.in_progress, config.token)
        guarded = OriginGuard(
            guarded, [config.host, *(name.strip() for name in config.hosts.split(";") if name.strip())]
        )
        self.access_log = AccessLog(RateGuard(guarded, self.rates), clock)
        self.asgi: ASGIApp = self.access_log


async def _refuse(request: Request, error: Exception) -> Response:
    """Answer what the router refuses: an unknown path, or a method that a path does not have."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    hint = f"Allowed: {headers['Allow']}" if "Allow" in headers else "/openapi.json lists all paths"
    problem = HttpError(
        HTTPStatus(error.status_code), f"{request.method} {request.url.path[:200]}", hint=hint, headers=headers
    )
    return problem_response(problem)
