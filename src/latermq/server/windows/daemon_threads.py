"""Daemon threads for work that may hang forever, such as reads of an unresponsive folder. No process waits for them.

The interpreter always joins the thread pools of the standard library at exit, even after `shutdown(wait=False)`.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads:
    """Runs jobs in order of submission, on at most `count` threads. Only one thread may call its methods."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run the work on a thread. The future holds its result or error."""
        future: Future[T] = Future()
        self._jobs.put((future, work))
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._count:
            name = f"{self._name}-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
            self._threads[-1].start()
        return future

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, work = job
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del job, future, work
            self._idle.release()

    def shutdown(self, *, wait: bool) -> None:
        """Cancel the queued jobs and start no more. With `wait`, return when the running jobs have ended."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                job[0].cancel()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads if wait else ():
            thread.join()
