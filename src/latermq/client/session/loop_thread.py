"""The event loop thread of blocking clients, and the base class that starts and closes such a client."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from latermq.client.session.failures import ClientClosed
from latermq.client.session.session import Client

T = TypeVar("T")


class LoopThread:
    """One event loop for all blocking clients of the process. It stops when the last of them closes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        with self._lock:
            self._users += 1
            if self._loop is None:
                self._loop = uvloop.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="latermq", daemon=True)
                self._thread.start()

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._loop is not None and self._thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()
                self._loop = self._thread = None

    def submit(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        if self._loop is None:
            work.close()
            raise ClientClosed("this client is closed or was not started", hint="Use it inside `with`")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call on the client's own event loop would deadlock")
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())


loop_thread = LoopThread()


class BlockingClient:
    """Base class of blocking clients: use them in `with`, or call `start` and `close`."""

    _client: Client

    def __init__(self) -> None:
        self._running = False

    def start(self) -> None:
        """Start the client. `with` calls this."""
        loop_thread.acquire()
        try:
            loop_thread.run(self._client.start())
        except BaseException:
            loop_thread.release()
            raise
        self._running = True

    def close(self) -> None:
        """Shut down cleanly. `with` calls this."""
        if self._running:
            self._running = False
            try:
                loop_thread.run(self._client.close())
            finally:
                loop_thread.release()

    @property
    def client_id(self) -> str:
        return self._client.client_id

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
