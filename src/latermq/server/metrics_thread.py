"""The metrics server in a thread with a loop of its own, for a process that has none."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from latermq.clock import SystemClock
from latermq.config import Config
from latermq.server.metrics_server import Metrics, MetricsServer
from latermq.tls.front import TlsFront
from latermq.tls.server_certificates import configured_certificate, open_web_context


@contextmanager
def serving_metrics(
    metrics: Metrics, config: Config, setting: str, host: str, port: int, default: int
) -> Iterator[None]:
    """Serve metrics while the block runs, on the port that an operator configured with `setting`; 0 disables them."""
    if not port:
        yield
        return
    contexts = None
    if config.metrics.tls:
        contexts = open_web_context(configured_certificate(config.tls), config.tls, setting="metrics.tls")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="latermq-metrics-loop", daemon=True)
    thread.start()
    front = None
    if contexts is not None:
        front = TlsFront(contexts, config.tls.handshake_timeout / 1000, SystemClock())
        loop.call_soon_threadsafe(contexts.watch, config.tls.reload_every / 1000)
    server = MetricsServer(metrics, front)
    try:
        asyncio.run_coroutine_threadsafe(server.start_for(setting, host, port, default), loop).result()
        yield
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()
        if contexts is not None:
            asyncio.run_coroutine_threadsafe(contexts.close(), loop).result()
            asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
