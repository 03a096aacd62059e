"""The console: routes of all pages, with login and logout, errors as pages, and the frame around each."""

import gzip
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from latermq.addresses import reached_from
from latermq.clock import Clock
from latermq.config import Config
from latermq.errors import LaterMQError, MalformedRequest
from latermq.http.brokers import name_servers_of
from latermq.http.collector import Collector
from latermq.http.console.api_calls import Api, ApiCalls
from latermq.http.console.assets import Assets, accepts_gzip
from latermq.http.console.calls_as_code import Servers
from latermq.http.console.page import Page, PageRow, Redirect, View, Visit
from latermq.http.console.pages import PAGES
from latermq.http.console.rendering import Templates
from latermq.http.endpoint import Endpoint
from latermq.http.problems import HttpError, problem_of
from latermq.http.security.credentials import source_of
from latermq.http.security.csrf import FORM
from latermq.http.security.roles import Identity, Role, check_role, default_role, identity_of
from latermq.http.security.sessions import Sessions
from latermq.http.security.sign_in import SignIn
from latermq.http.security.token import LOGIN_PATH

LOGOUT_PATH = "/logout"
ZONE_COOKIE = "latermq_zone"  # set by static/times.js
HTML = "text/html; charset=utf-8"
MAX_FIELDS = 200  # of a form
_COMPRESSED_FROM_BYTES = 1_000
_LEVEL = 4  # twice as fast as 9, and 5 % larger

Responder = Callable[[Request], Awaitable[Response]]


class Console:
    """All pages."""

    def __init__(
        self,
        endpoints: list[Endpoint],
        collector: Collector,
        sign_in: SignIn,
        sessions: Sessions,
        clock: Clock,
        config: Config,
        pages: Sequence[Page] = PAGES,
    ) -> None:
        """`endpoints` are the rows of the API. Without users and a token there is no login."""
        self._api = Api(endpoints, collector)
        self._clock = clock
        self._is_tls = config.http.tls
        self._namesrv = name_servers_of(config)
        self._sign_in = sign_in
        self._sessions = sessions
        self._pages = pages
        self._assets = Assets()
        self._templates = Templates(self._assets)

    @property
    def routes(self) -> list[Route]:
        by_path: dict[str, dict[str, Responder]] = {}
        for page in self._pages:
            for row in page.rows:
                by_path.setdefault(row.path, {})[row.method] = self._responder(page, row)
        by_path[LOGIN_PATH] = {"GET": self._login_page, "POST": self._login}
        by_path[LOGOUT_PATH] = {"POST": self._logout}
        routes = [Route(path, _dispatcher(by_method), methods=list(by_method)) for path, by_method in by_path.items()]
        return [*routes, *self._assets.routes]

    def problem(self, request: Request, error: LaterMQError, page: Page | None = None) -> Response:
        """Return an error as a page."""
        problem = problem_of(error)
        view = View("problem.html", {"problem": problem}, problem.title, HTTPStatus(problem.status))
        headers = dict(error.headers) if isinstance(error, HttpError) else {}
        return self._page_response(request, view, page, headers)

    def _responder(self, page: Page, row: PageRow) -> Responder:
        async def respond(request: Request) -> Response:
            try:
                identity = identity_of(request.scope)
                check_role(identity, row.role or default_role(row.method))
                form = await _form(request) if row.method == "POST" else ImmutableMultiDict[str, str]()
                visit = Visit(
                    request.path_params,
                    request.query_params,
                    form,
                    identity,
                    ApiCalls(self._api, identity),
                    self._clock.now_ms(),
                    self._servers(request),
                    unquote(request.cookies.get(ZONE_COOKIE, "")),
                )
                found = await row.handler(visit)
            except LaterMQError as error:
                return self.problem(request, error, page)
            if isinstance(found, Redirect):
                return _redirect(request, found)
            return self._page_response(request, found, page)

        return respond

    def _page_response(
        self, request: Request, view: View, page: Page | None, headers: Mapping[str, str] | None = None
    ) -> Response:
        identity = identity_of(request.scope)
        api = ApiCalls(self._api, identity)
        frame = {
            "title": view.title or (page.name if page is not None else ""),
            "here": page,
            "pages": [one for one in self._pages if all(api.has("GET", path) for path in one.needs)]
            if self._is_in(identity)
            else (),
            "identity": identity,
            "is_live": api.has("GET", "/api/v1/state"),  # who may not see the state of all has no event stream
            "is_operator": identity.role >= Role.OPERATOR,
            "may_run_jobs": identity.role >= Role.OPERATOR,
            "csrf": self._sessions.csrf_token(identity.session),
            "done": page.notes.get(request.query_params.get("done", ""), "") if page is not None else "",
        }
        assert not frame.keys() & view.shown.keys(), "a page uses a name of the frame"
        text = self._templates.render(view.template, {**frame, **view.shown}).encode()
        sent = {"Vary": "Accept-Encoding", "Cache-Control": "no-store", **(headers or {})}
        if len(text) >= _COMPRESSED_FROM_BYTES and accepts_gzip(request):
            text = gzip.compress(text, _LEVEL, mtime=0)
            sent["Content-Encoding"] = "gzip"
        return Response(text, view.status, sent, HTML)

    def _servers(self, request: Request) -> Servers:
        """Return the servers under the address that the visitor has opened, which is known to reach this machine."""
        host = request.headers["host"]
        name = urlsplit(f"//{host}").hostname or ""
        own = f"[{name}]" if ":" in name else name
        namesrv = ";".join(reached_from(own, server) for server in self._namesrv.split(";"))
        scheme = "https" if self._is_tls else "http"
        return Servers(f"{scheme}://{host}", namesrv, self._sign_in.has_token, self._sign_in.has_users)

    def _is_in(self, identity: Identity) -> bool:
        return not self._sign_in.is_needed or bool(identity.name)

    async def _login_page(self, request: Request) -> Response:
        wanted = _own_path(request.query_params.get("next", ""))
        if self._is_in(identity_of(request.scope)):
            return RedirectResponse(wanted, HTTPStatus.SEE_OTHER)
        return self._sign_in_page(request, wanted)

    async def _login(self, request: Request) -> Response:
        if not self._sign_in.is_needed:
            return RedirectResponse("/", HTTPStatus.SEE_OTHER)
        try:
            form = await _form(request)
            identity = await self._identified(form, source_of(request.scope))
        except LaterMQError as error:
            return self.problem(request, error)
        wanted = _own_path(form.get("next", ""))
        if identity is None:
            return self._sign_in_page(request, wanted, form)
        response = RedirectResponse(wanted, HTTPStatus.SEE_OTHER)
        response.set_cookie(
            self._sessions.cookie_name,
            self._sessions.open(identity),
            max_age=self._sessions.timeout_s,
            httponly=True,
            samesite="strict",
            # Behind a proxy that speaks TLS, this process sees plain HTTP; the browser's Origin does not.
            secure=self._is_tls or request.headers.get("origin", "").startswith("https://"),
        )
        return response

    async def _identified(self, form: ImmutableMultiDict[str, str], source: str) -> Identity | None:
        if form.get("token") or not self._sign_in.has_users:
            return await self._sign_in.by_token(form.get("token", "").strip(), source)
        return await self._sign_in.by_secret(form.get("user", "").strip(), form.get("secret", ""), source)

    def _sign_in_page(
        self, request: Request, wanted: str, refused: ImmutableMultiDict[str, str] | None = None
    ) -> Response:
        error = ""
        if refused is not None:
            by_token = refused.get("token") or not self._sign_in.has_users
            error = (
                "This token is not the one in http.token."
                if by_token
                else "The user or the secret is wrong, or the user is disabled."
            )
        shown = {
            "next": wanted,
            "error": error,
            "user": refused.get("user", "") if refused is not None else "",
            "has_users": self._sign_in.has_users,
            "has_token": self._sign_in.has_token,
        }
        status = HTTPStatus.OK if refused is None else HTTPStatus.UNAUTHORIZED
        return self._page_response(request, View("login.html", shown, "Sign in", status), None)

    async def _logout(self, request: Request) -> Response:
        await self._sessions.end(request.headers.getlist("cookie"))
        response = RedirectResponse(LOGIN_PATH, HTTPStatus.SEE_OTHER)
        response.delete_cookie(self._sessions.cookie_name, httponly=True, samesite="strict")
        return response


def _dispatcher(by_method: Mapping[str, Responder]) -> Responder:
    async def serve(request: Request) -> Response:
        return await by_method["GET" if request.method == "HEAD" else request.method](request)

    return serve


def _redirect(request: Request, found: Redirect) -> Response:
    mark = "&" if "?" in found.path else "?"
    path = f"{found.path}{mark}done={quote(found.done)}" if found.done else found.path
    return RedirectResponse(path, HTTPStatus.SEE_OTHER)


async def _form(request: Request) -> ImmutableMultiDict[str, str]:
    """Return the fields of a form. Of a field that is given twice, `get` returns the last one."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise HttpError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the request has no form", hint=f"Send {FORM}")
    try:
        text = (await request.body()).decode()
        return ImmutableMultiDict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise BadForm(f"the form is not readable, or has more than {MAX_FIELDS} fields") from None


class BadForm(HttpError, MalformedRequest):
    """A form cannot be read."""

    def __init__(self, message: str) -> None:
        super().__init__(HTTPStatus.BAD_REQUEST, message, hint="Open the page again")


def _own_path(text: str) -> str:
    """Return a path of this console, however a link to the login page was made up."""
    is_own = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and "\\" not in text
    return text if is_own else "/"


def wants_page(request: Request) -> bool:
    """Whether a client is a browser that shows what it gets."""
    return "text/html" in request.headers.get("accept", "")
