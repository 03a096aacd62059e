"""Sessions at a console with a token, as a browser opens them."""

import re

from tests.support.http_console import HttpClient

TOKEN = "0123456789abcdef-test"


def session_of(client: HttpClient) -> tuple[str, str]:
    """A session's cookie, and a token from one of its pages."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    reply = client.request("POST", "/login", f"token={TOKEN}".encode(), headers=form)
    cookie = reply.headers["set-cookie"].partition(";")[0]
    page = client.get("/timers/new", Cookie=cookie).body.decode()
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found is not None
    return cookie, found[1]
