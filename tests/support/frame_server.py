"""A scripted server in a thread, for blocking clients."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from latermq.protocol.remoting.frames import Command, FrameReader

DISCONNECT = b""
Script = Callable[[Command], bytes | None]


class FrameServer:
    """Answers with the result of `script`: bytes are sent, DISCONNECT closes the connection, None sends nothing."""

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
                    response = self.script(request)
                    if response == DISCONNECT:
                        return
                    if response is not None:
                        connection.sendall(response)


@contextlib.contextmanager
def frame_server(script: Script) -> Iterator[FrameServer]:
    server = FrameServer(script)
    try:
        yield server
    finally:
        server.close()
