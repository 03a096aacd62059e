"""A server in a thread that answers frames as a test tells it to, for clients that block."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from latermq.protocol.remoting.frames import Command, FrameReader

HANG_UP = b""
Script = Callable[[Command], bytes | None]


class FrameServer:
    """Answers by `script`: bytes are sent, HANG_UP closes the connection, None leaves a request unanswered."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Command] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def close(self) -> None:
        # A blocked accept or recv ends when its socket is shut down, not when it is closed.
        for sock in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        reader = FrameReader()
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65_536):
                for request in reader.feed(data):
                    self.requests.append(request)
                    answer = self.script(request)
                    if answer == HANG_UP:
                        return
                    if answer is not None:
                        connection.sendall(answer)


@contextlib.contextmanager
def frame_server(script: Script) -> Iterator[FrameServer]:
    server = FrameServer(script)
    try:
        yield server
    finally:
        server.close()
