"""The metrics server in a thread with a loop of its own, for a process that has none."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from latermq.server.metrics_server import Metrics, MetricsServer


@contextmanager
def serving_metrics(metrics: Metrics, setting: str, host: str, port: int, default: int) -> Iterator[None]:
    """Serve metrics while the block runs, on the port that an operator configured with `setting`; 0 disables them."""
    if not port:
        yield
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="latermq-metrics-loop", daemon=True)
    thread.start()
    server = MetricsServer(metrics)
    try:
        asyncio.run_coroutine_threadsafe(server.start_for(setting, host, port, default), loop).result()
        yield
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
