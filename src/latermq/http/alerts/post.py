"""One POST over HTTP/1.1: a new connection, one deadline for everything, and no redirect to another host."""

import asyncio
import ssl
from collections.abc import Mapping
from urllib.parse import SplitResult, urljoin, urlsplit

import h11

MAX_REDIRECTS = 3
_MAX_HEAD_BYTES = 32 << 10
_READ_BYTES = 16 << 10
_KEEPING_METHOD = frozenset({307, 308})  # others turn a POST into a GET


class PostFailed(Exception):
    """A message was not accepted. The text contains no part of the URL but its host."""

    def __init__(self, reason: str, *, may_retry: bool) -> None:
        super().__init__(reason)
        self.may_retry = may_retry


def origin(url: SplitResult) -> str:
    """Return the part of a URL that may be shown: its path often contains a password."""
    return f"{url.scheme}://{url.netloc}"


async def post(url: SplitResult, body: bytes, headers: Mapping[str, str], timeout_s: float) -> None:
    """Post a body. Raise PostFailed unless the answer is 2xx. The answer's own body is not read."""
    try:
        async with asyncio.timeout(timeout_s):
            await _post(url, body, headers)
    except TimeoutError:
        raise PostFailed(f"no answer within {timeout_s:g} s", may_retry=True) from None
    except ssl.SSLError as error:
        raise PostFailed(f"TLS: {error.reason or 'failed'}", may_retry=True) from None
    except OSError as error:
        raise PostFailed(error.strerror or type(error).__name__, may_retry=True) from None
    except h11.RemoteProtocolError:
        raise PostFailed("the answer is not HTTP", may_retry=True) from None


async def _post(url: SplitResult, body: bytes, headers: Mapping[str, str]) -> None:
    for _ in range(MAX_REDIRECTS + 1):
        status, location = await _exchange(url, body, headers)
        if 200 <= status < 300:
            return
        if not 300 <= status < 400:
            may_retry = status >= 500 or status in (408, 425, 429)
            raise PostFailed(f"the answer is {status}", may_retry=may_retry)
        url = _redirected(url, status, location)
    raise PostFailed(f"more than {MAX_REDIRECTS} redirects", may_retry=False)


def _redirected(url: SplitResult, status: int, location: str) -> SplitResult:
    if status not in _KEEPING_METHOD:
        raise PostFailed(f"the answer is {status}, a redirect that is not followed", may_retry=False)
    try:
        target = urlsplit(urljoin(url.geturl(), location))
        is_same = (target.scheme, target.hostname, target.port) == (url.scheme, url.hostname, url.port)
    except ValueError:
        is_same = False
    if not is_same:
        raise PostFailed(f"the answer is {status}, a redirect to another host, which is not followed", may_retry=False)
    return target


async def _exchange(url: SplitResult, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
    """Send the request on a connection of its own. Return the status, and where a redirect points."""
    is_tls = url.scheme == "https"
    # On a thread, because it reads the certificates of all authorities.
    context = await asyncio.to_thread(ssl.create_default_context) if is_tls else None
    port = url.port or (443 if is_tls else 80)
    reader, writer = await asyncio.open_connection(url.hostname, port, ssl=context)
    try:
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        fields = {"Host": url.netloc, "Content-Length": str(len(body)), "Connection": "close", **headers}
        request = h11.Request(method="POST", target=path, headers=list(fields.items()))
        for part in (request, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(connection.send(part) or b"")
        while True:  # an answer may come before the whole request was read
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(_READ_BYTES))
            elif isinstance(event, h11.Response):
                location = next((value for name, value in event.headers if name == b"location"), b"")
                return event.status_code, location.decode("latin-1")
            elif not isinstance(event, h11.InformationalResponse):
                raise PostFailed("the connection was closed without an answer", may_retry=True)
    finally:
        writer.transport.abort()
