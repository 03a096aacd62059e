"""The proxy process: its socket, certificate and metrics, from start to clean stop."""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

import structlog
import uvloop

from latermq.clock import Clock, SystemClock
from latermq.config import DEFAULT_PROXY_METRICS_PORT, Config, ProxyConfig, networks
from latermq.protocol.http2.limits import Limits
from latermq.server.collector import tune_garbage_collector
from latermq.server.http2.listener import Http2Listener, grpc_handler
from latermq.server.http2.transport_limits import TransportLimits
from latermq.server.metrics_server import MetricsServer
from latermq.server.proxy.composition import ProxyParts
from latermq.server.proxy.proxy_metrics import ProxyMetrics
from latermq.server.server_tls import ServerTls

_BROKERS_TIMEOUT_S = 5.0  # for the first connections to brokers; a proxy serves calls without them too

_log = structlog.get_logger(__name__)


class ProxyProcess:
    """A proxy with its sockets. Call `start`, then `stop`, once each."""

    def __init__(self, config: Config, clock: Clock, data: Path | None) -> None:
        self._config = config
        self._host = config.proxy.host or config.server.host
        self._tls = ServerTls(config, data, clock, of_proxy=True)
        self.parts = ProxyParts(config, name_servers_of(config), clock, data)
        self.listener = Http2Listener(
            grpc_handler(self.parts.table.methods),
            transport_limits(config.proxy),
            clock,
            self._tls.contexts,
            requires_tls=config.tls.mode == "enforcing",
        )
        self._metrics = MetricsServer(
            ProxyMetrics(config, lambda: self.address, self.statistics), self._tls.metrics_front()
        )

    @property
    def address(self) -> str:
        return f"{self._host}:{self.listener.port}"

    def statistics(self) -> dict[str, int]:
        parts = (self.parts, self.listener, self._metrics, self._tls)
        return {name: count for part in parts for name, count in part.statistics().items()}

    async def start(self) -> None:
        """Connect to the brokers, then accept clients."""
        config = self._config
        await self._metrics.start_for(
            "metrics.proxy_port", self._host, config.metrics.proxy_port, DEFAULT_PROXY_METRICS_PORT
        )
        self._tls.watch()
        await self.parts.start(_BROKERS_TIMEOUT_S)
        await self.listener.start(self._host, config.proxy.port)

    async def stop(self) -> None:
        """Stop taking calls, let waiting clients go, and finish the calls in flight."""
        stopping = asyncio.create_task(self.listener.stop(self._config.proxy.stop_timeout / 1000))
        await asyncio.sleep(0)  # the listener announces the end to all connections first
        self.parts.release()
        await stopping
        await self.parts.close()
        await self._tls.close()
        await self._metrics.close()


def name_servers_of(config: Config) -> str:
    """Return the addresses of the name servers."""
    server = config.server
    return config.proxy.namesrv or server.namesrv or f"{server.host}:{server.namesrv_port}"


def transport_limits(proxy: ProxyConfig) -> TransportLimits:
    """Return the limits of the listener."""
    return TransportLimits(
        http2=Limits(max_streams=proxy.max_connection_calls),
        max_connections=proxy.max_connections,
        max_connections_per_address=proxy.max_connections_per_address,
        balancers=networks(proxy.balancers),
        max_held_bytes=proxy.max_held,
        max_message_bytes=proxy.max_request,
        stream_buffer_bytes=proxy.write_buffer,
        write_buffer_bytes=proxy.write_buffer,
        request_timeout_s=proxy.request_timeout / 1000,
        stall_timeout_s=proxy.stalled_timeout / 1000,
        idle_timeout_s=proxy.idle_timeout / 1000,
    )


def run_proxy(config: Config, data: Path | None, ready: Callable[[str], None]) -> int:
    """Run a proxy until SIGTERM or SIGINT. `ready` receives its address once it accepts connections."""

    async def run() -> None:
        process = ProxyProcess(config, SystemClock(), data)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        try:
            await process.start()
            tune_garbage_collector()
            ready(f"proxy {process.address}")
            await stop.wait()
        finally:
            await process.stop()

    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return 0
