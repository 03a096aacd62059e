"""Metrics of a proxy: its clients, calls and brokers, each of its limits, and its connections."""

from collections.abc import Callable, Mapping

from latermq.broker.metrics.exposition import Family, Kind, Reading
from latermq.broker.metrics.limits import ACCESS_LIMITS, Limit, limits
from latermq.broker.metrics.metric_families import (
    COPIED_ACCESS_FAMILIES,
    SERVER_FAMILIES,
    copied_access_values,
    server_values,
)
from latermq.config import Config

_FAMILIES = {
    "calls": Family("latermq_proxy_calls", Kind.GAUGE, "Calls in progress"),
    "finished_calls": Family("latermq_proxy_calls_total", Kind.COUNTER, "Finished calls"),
    "clients": Family("latermq_proxy_clients", Kind.GAUGE, "Known clients"),
    "telemetry_streams": Family("latermq_proxy_telemetry_streams", Kind.GAUGE, "Open telemetry streams"),
    "displaced_clients": Family(
        "latermq_proxy_clients_displaced_total", Kind.COUNTER, "Clients forgotten in favor of new ones"
    ),
    "checks_passed": Family(
        "latermq_proxy_transaction_checks_total", Kind.COUNTER, "Checks of transactions passed to a client"
    ),
    "checks_dropped": Family(
        "latermq_proxy_transaction_checks_dropped_total",
        Kind.COUNTER,
        "Checks of transactions that reached no client",
    ),
    "failed_reports": Family(
        "latermq_proxy_reports_failed_total", Kind.COUNTER, "Reports about clients that a broker did not accept"
    ),
    "waiting_receives": Family(
        "latermq_proxy_receives", Kind.GAUGE, "Consumers that wait for messages, or have not read all of them"
    ),
    "returned_messages": Family(
        "latermq_proxy_messages_returned_total",
        Kind.COUNTER,
        "Messages returned to the broker, because their consumer had gone or read too slowly",
    ),
    "dropped_returns": Family(
        "latermq_proxy_returns_dropped_total", Kind.COUNTER, "Returns of messages given up, because a broker was away"
    ),
    "brokers_connected": Family("latermq_proxy_brokers", Kind.GAUGE, "Brokers with an open connection"),
    "failed_broker_requests": Family(
        "latermq_proxy_broker_requests_failed_total", Kind.COUNTER, "Requests that could not be sent to a broker"
    ),
}
_UP = Family("rocketmq_proxy_up", Kind.GAUGE, "Always 1")
OWN_FAMILIES = (_UP, *_FAMILIES.values())
FAMILIES = (*OWN_FAMILIES, *COPIED_ACCESS_FAMILIES, *SERVER_FAMILIES)
PROXY_LIMITS = (
    *ACCESS_LIMITS,
    Limit("proxy.max_routes", "topic_entries"),
    Limit("proxy.max_look_ups", "topic_fetches"),
    Limit("proxy.max_broker_requests", "broker_requests"),
    Limit("proxy.max_clients", "clients"),
    Limit("proxy.max_clients_per_address", "address_clients"),
    Limit("proxy.max_all_settings", "settings_bytes"),
    Limit("proxy.max_unsent", "unsent_message_bytes"),
    Limit("proxy.max_returns", "retried_returns"),
    Limit("proxy.max_connections", "connections", "max_connections"),
    Limit("proxy.max_held", "held_bytes"),
    Limit("metrics_connections", "metrics_connections", "max_metrics_connections"),
)


class ProxyMetrics:
    """Reads the metrics of one proxy, on the thread that serves it."""

    def __init__(self, config: Config, address: Callable[[], str], statistics: Callable[[], Mapping[str, int]]) -> None:
        """`address` is available once the proxy listens."""
        self._config = config
        self._address = address
        self._statistics = statistics

    def read(self) -> Reading:
        """The current values of all metrics."""
        statistics = self._statistics()
        own = {family.name: statistics[name] for name, family in _FAMILIES.items()}
        values = {
            _UP.name: 1,
            **own,
            **copied_access_values(statistics),
            **server_values(statistics),
            **limits(PROXY_LIMITS, self._config, statistics),
        }
        return Reading(FAMILIES, {"node_type": "proxy", "node_id": self._address()}, values)
