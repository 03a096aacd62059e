"""How close a server is to each of its limits, so that operators can act before a request is rejected."""

from collections.abc import Mapping
from typing import NamedTuple

from latermq.config import Config


class Limit(NamedTuple):
    """One limit, named by its setting. A constant has a name without a dot."""

    name: str
    used: str  # the statistic that counts towards it
    bound: str = ""  # the statistic with the limit, if it is a constant or a setting that may be lowered


ACCESS_LIMITS = (
    Limit("access.max_users", "access_users"),
    Limit("access.max_entries", "access_entries"),
    Limit("audit.max_waiting", "audit_waiting"),
    Limit("audit.max_counters", "audit_counters"),
)
SERVER_LIMITS = (
    Limit("server.max_connections", "connections", "max_connections"),
    Limit("server.max_connections_per_address", "address_connections", "max_address_connections"),
    Limit("server.max_held", "held_bytes"),
    Limit("metrics_connections", "metrics_connections", "max_metrics_connections"),
)
BROKER_LIMITS = (
    Limit("broker.max_topics", "topics"),
    Limit("broker.max_groups", "groups"),
    Limit("broker.max_group_configs", "group_config_bytes"),
    Limit("broker.max_auto_created", "host_auto_created"),
    Limit("broker.max_offsets", "consumer_offsets"),
    Limit("broker.max_request_modes", "request_modes"),
    Limit("broker.max_clients", "clients"),
    Limit("broker.max_group_members", "group_members"),
    Limit("broker.max_connection_groups", "connection_groups"),
    Limit("broker.max_subscriptions", "subscription_bytes"),
    Limit("broker.max_queue_locks", "queue_locks"),
    Limit("broker.max_waiting_pulls", "waiting_pulls"),
    Limit("broker.max_waiting_pulls_per_connection", "connection_waiting_pulls"),
    Limit("broker.max_waiting_filters", "waiting_filters_bytes"),
    Limit("broker.max_held_notices", "notices_held_bytes"),
    Limit("broker.filter_cache", "filters_kept_bytes"),
    Limit("broker.max_unflushed", "unflushed_replies"),
    Limit("broker.max_unsaved", "unsaved_changes"),
    Limit("broker.max_client_calls", "client_calls"),
    Limit("waiting_copies", "waiting_copies", "max_waiting_copies"),
    Limit("pop.max_in_flight", "pop_in_flight"),
    Limit("pop.max_in_flight_per_queue", "pop_queue_in_flight"),
    Limit("pop.max_queues", "pop_queues"),
    Limit("pop.max_waiting", "waiting_pops"),
    Limit("pop.max_waiting_per_queue", "queue_waiting_pops"),
    Limit("pop.max_unjournalled", "unjournalled_replies"),
    Limit("store.max_queues", "queues"),
    Limit("store.max_open_queues", "mapped_queue_files", "max_mapped_queue_files"),
    Limit("timer.stage", "staged_bytes"),
    Limit("timer.max_waiting", "timers_unput"),
    Limit("timer.max_loaded", "timers_loaded"),
    Limit("transaction.max_open", "open_halves"),
    *ACCESS_LIMITS,
    Limit("look_ups", "look_ups", "max_look_ups"),
    Limit("connection_look_ups", "connection_look_ups", "max_connection_look_ups"),
    Limit("unsaved_replies", "unsaved_reply_bytes", "max_unsaved_reply_bytes"),
    Limit("unflushed_replies", "unflushed_bytes", "max_unflushed_bytes"),
    Limit("unsaved_requests", "unsaved_request_bytes", "max_unsaved_request_bytes"),
    Limit("operators_tables", "operators_tables", "max_operators_tables"),
    Limit("assignment_queries", "assignment_queries", "max_assignment_queries"),
    Limit("timeline_moves", "timeline_moves", "max_timeline_moves"),
    Limit("window_requests", "window_requests", "max_window_requests"),
    *SERVER_LIMITS,
)


def limits(known: tuple[Limit, ...], config: Config, statistics: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """The families `latermq_limit` and `latermq_limit_used`. A broker without sockets has fewer samples."""
    bounds: dict[str, float] = {}
    used: dict[str, float] = {}
    for limit in known:
        if limit.used in statistics and (not limit.bound or limit.bound in statistics):
            section, _, key = limit.name.partition(".")
            bound = statistics[limit.bound] if limit.bound else getattr(getattr(config, section), key)
            bounds[limit.name] = int(bound)
            used[limit.name] = statistics[limit.used]
    return {"latermq_limit": bounds, "latermq_limit_used": used}
