"""The driver's control endpoint: HTTP requests on loopback from commands that have no Spark, such as SQL queries.

Every request needs the driver's token. Sizes, times and the number of connections are limited.
"""

import hmac
import logging
import select
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any, ClassVar

import msgspec

from latermq.errors import LaterMQError
from latermq.pipeline.remote.driver_address import HOST

MAX_BODY_BYTES = 1 << 20
MAX_CONNECTIONS = 16
TIMEOUT_S = 60.0  # for a whole exchange, including the work on the answer; in a stream, for each piece
_PIECE_BYTES = 1 << 16  # of a stream that are sent at once

_log = logging.getLogger("latermq.pipeline")

# A request body to the JSON of its answer. A LaterMQError is answered with its text.
Route = Callable[[bytes], object]
# A request body to an answer in pieces, for as long as the client reads. It is closed when the client is gone, which is
# only noticed between two pieces. An empty piece sends what is held back.
StreamRoute = Callable[[bytes], Generator[bytes]]
Routes = Mapping[tuple[str, str], Route]
StreamRoutes = Mapping[tuple[str, str], StreamRoute]


class ControlServer:
    """Serves the requests of this machine in threads of its own. Call `start` and `close` once each."""

    def __init__(
        self, token: str, routes: Routes, streams: StreamRoutes | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """`routes` and `streams` have a function for each pair of method and path."""
        self._server = _Server(token, routes, streams or {}, timeout_s)
        self._thread = threading.Thread(target=self._server.serve_forever, name="latermq-control", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def statistics(self) -> dict[str, int]:
        """Open connections, their limit, and how many requests were refused since the start."""
        return {
            "control_connections": self._server.connections,
            "max_control_connections": MAX_CONNECTIONS,
            "control_refused": self._server.refused,
        }


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    block_on_close = False  # a stuck answer must not delay the end of the driver
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, token: str, routes: Routes, streams: StreamRoutes, timeout_s: float) -> None:
        super().__init__((HOST, 0), _Handler)
        self.authorization = f"Bearer {token}"
        self.routes = routes
        self.streams = streams
        self.exchange_timeout_s = timeout_s
        self.connections = 0
        self.refused = 0
        self.watchdogs: dict[Any, threading.Timer] = {}
        self._lock = threading.Lock()

    def server_bind(self) -> None:
        """Bind without looking up the host's name, which may take seconds."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if self.connections >= MAX_CONNECTIONS:
                self.refused += 1
                self.shutdown_request(request)
                return
            self.connections += 1
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can start
            self._note_end()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        watchdog = threading.Timer(self.exchange_timeout_s, _abort, [request])
        watchdog.daemon = True
        self.watchdogs[request] = watchdog
        try:
            watchdog.start()
            super().process_request_thread(request, client_address)
        finally:
            watchdog.cancel()
            del self.watchdogs[request]
            self.shutdown_request(request)
            self._note_end()

    def _note_end(self) -> None:
        with self._lock:
            self.connections -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Without a stack trace: the client is gone or was cut off."""
        _log.debug("a control request was aborted", exc_info=True)


def _abort(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:  # already closed
        return


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"  # one request per connection
    server: _Server
    timeout: ClassVar[float] = TIMEOUT_S

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""

    def _answer(self) -> None:
        given = self.headers.get("Authorization", "")
        # No other answer without the token, not even about which paths exist.
        if not hmac.compare_digest(given.encode(), self.server.authorization.encode()):
            self.server.refused += 1
            self._send(HTTPStatus.UNAUTHORIZED, {"message": "wrong token"})
            return
        route = self.server.routes.get((self.command, self.path))
        stream = self.server.streams.get((self.command, self.path))
        if route is None and stream is None:
            self._send(HTTPStatus.NOT_FOUND, {"message": f"no {self.command} {self.path[:100]}"})
            return
        length = self.headers.get("Content-Length", "0")
        if not length.isascii() or not length.isdigit() or len(length) > 9 or int(length) > MAX_BODY_BYTES:
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"message": f"more than {MAX_BODY_BYTES} bytes"})
            return
        body = self.rfile.read(int(length))
        if route is None:
            assert stream is not None
            self._stream(stream, body)
            return
        try:
            self._send(HTTPStatus.OK, route(body))
        except LaterMQError as error:
            self._send(HTTPStatus.UNPROCESSABLE_ENTITY, error_fields(error))
        except Exception:
            _log.warning("the control request %s failed", self.path, exc_info=True)
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, {"message": "the driver failed; see its log"})

    def _stream(self, route: StreamRoute, body: bytes) -> None:
        """Send an answer in pieces, however long it takes: a client that does not read is cut off by the timeout."""
        self.server.watchdogs[self.connection].cancel()
        self.connection.settimeout(self.server.exchange_timeout_s)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/octet-stream")
        self.end_headers()
        held = bytearray()
        with closing(route(body)) as pieces:
            for piece in pieces:
                held += piece
                if len(held) >= _PIECE_BYTES or not piece:
                    if self._is_client_gone():
                        return
                    self.wfile.write(held)
                    held.clear()
        self.wfile.write(held)

    def _is_client_gone(self) -> bool:
        """Whether the client has closed the connection. It sends nothing after its request."""
        waiting = select.poll()  # select() is limited to the first 1024 descriptors of a process
        waiting.register(self.connection, select.POLLIN)
        return bool(waiting.poll(0)) and not self.connection.recv(1, socket.MSG_PEEK)

    def _send(self, status: HTTPStatus, value: object) -> None:
        body = msgspec.json.encode(value)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def error_fields(error: LaterMQError) -> dict[str, object]:
    """An error as JSON."""
    return {"message": error.message, "hint": error.hint, "excerpt": getattr(error, "excerpt", "")}
