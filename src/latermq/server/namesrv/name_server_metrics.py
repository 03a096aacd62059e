"""Metrics of a name server: its tables, each of its limits, and the same socket metrics as a broker's."""

from collections.abc import Callable, Mapping

from latermq.broker.metrics.exposition import Family, Kind, Reading
from latermq.broker.metrics.limits import ACCESS_LIMITS, SERVER_LIMITS, Limit, limits
from latermq.broker.metrics.metric_families import (
    COPIED_ACCESS_FAMILIES,
    SERVER_FAMILIES,
    copied_access_values,
    server_values,
)
from latermq.config import Config

OWN_FAMILIES = (
    Family("latermq_namesrv_brokers", Kind.GAUGE, "Registered broker processes"),
    Family("latermq_namesrv_brokers_away", Kind.GAUGE, "Recently disconnected brokers"),
    Family("latermq_namesrv_topics", Kind.GAUGE, "Topics with a route"),
    Family("latermq_namesrv_kv_entries", Kind.GAUGE, "Keys in the key-value table"),
    Family("latermq_namesrv_config_files_set_aside", Kind.GAUGE, "Files that could not be parsed at the start"),
)
FAMILIES = (*OWN_FAMILIES, *COPIED_ACCESS_FAMILIES, *SERVER_FAMILIES)
NAME_SERVER_LIMITS = (
    *ACCESS_LIMITS,
    Limit("namesrv.max_brokers", "brokers_held"),
    Limit("namesrv.max_host_brokers", "host_brokers"),
    Limit("namesrv.max_topics", "broker_topics_held"),
    Limit("namesrv.max_host_topics", "host_topics"),
    Limit("namesrv.max_kv", "kv_bytes"),
    Limit("namesrv.max_kv_entries", "kv_entries"),
    Limit("kv_changes", "kv_waiting", "max_kv_waiting"),
    *SERVER_LIMITS,
)


class NameServerMetrics:
    """Reads the metrics of one name server, on the thread that serves it."""

    def __init__(self, config: Config, address: Callable[[], str], statistics: Callable[[], Mapping[str, int]]) -> None:
        """`address` is available once the server listens."""
        self._config = config
        self._address = address
        self._statistics = statistics

    def read(self) -> Reading:
        """The current values of all metrics."""
        statistics = self._statistics()
        own = {family.name: statistics[family.name.removeprefix("latermq_namesrv_")] for family in OWN_FAMILIES}
        values = {
            **own,
            **copied_access_values(statistics),
            **server_values(statistics),
            **limits(NAME_SERVER_LIMITS, self._config, statistics),
        }
        return Reading(FAMILIES, {"node_type": "namesrv", "node_id": self._address()}, values)
