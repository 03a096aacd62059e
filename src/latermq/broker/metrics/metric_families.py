"""The metrics that servers export: names, kinds and help texts. docs/operations.md lists them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from latermq.broker.metrics.exposition import Family, Kind

if TYPE_CHECKING:
    from latermq.broker.metrics.exposition import Value


def _of_store(name: str, kind: Kind, meaning: str, label: str = "", scale: int = 1) -> Family:
    return Family(name, kind, meaning, label, of_storage=True, scale=scale)


_OF_CONNECTIONS = (
    Family("latermq_connections", Kind.GAUGE, "Client connections"),
    Family("latermq_connections_refused_total", Kind.COUNTER, "Connections rejected because a limit was reached"),
    Family(
        "latermq_connections_held_bytes",
        Kind.GAUGE,
        "Bytes of incomplete requests and unread replies of all connections",
    ),
    Family(
        "latermq_connections_let_go_total", Kind.COUNTER, "Requests rejected and connections closed to free these bytes"
    ),
    Family("latermq_connections_paused", Kind.GAUGE, "Connections whose client has unread data"),
    Family("latermq_tls_failures_total", Kind.COUNTER, "Connections closed because of TLS"),
    Family("latermq_certificate_reload_failures_total", Kind.COUNTER, "New certificates that could not be used"),
    Family("latermq_connections_closed_total", Kind.COUNTER, "Connections closed by the server, by reason", "reason"),
    Family(
        "latermq_turns_used_up_total", Kind.COUNTER, "Times that a connection used up its turn and waited for others"
    ),
    Family(
        "latermq_metrics_connections_displaced_total",
        Kind.COUNTER,
        "Connections to the metrics port that were rejected, or closed in favor of others",
    ),
)
_OF_BOUNDS = (
    Family("latermq_requests_refused_total", Kind.COUNTER, "Requests answered with an error", "code"),
    Family("latermq_limit", Kind.GAUGE, "Configured limits, as they apply now", "setting"),
    Family("latermq_limit_used", Kind.GAUGE, "How much of each limit is used", "setting"),
)
ACCESS_FAMILIES = (
    Family(
        "latermq_access_refused_total",
        Kind.COUNTER,
        "Requests of unknown users or with a wrong signature (unauthenticated), or without permission (unauthorized)",
        "reason",
    ),
    Family("latermq_audit_lost_total", Kind.COUNTER, "Lines of the audit log that could not be written"),
)
COPIED_ACCESS_FAMILIES = (
    *ACCESS_FAMILIES,
    Family("latermq_access_users", Kind.GAUGE, "Users copied from a broker"),
    Family("latermq_access_copy_age_seconds", Kind.GAUGE, "Time since a broker confirmed the copy of the users"),
)
SERVER_FAMILIES = (*_OF_CONNECTIONS, *_OF_BOUNDS)  # of the broker and of the name server
FAMILIES = (
    _of_store(
        "rocketmq_timer_enqueue_lag", Kind.GAUGE, "Entries of the timer topic that the engine has not loaded yet"
    ),
    _of_store(
        "rocketmq_timer_enqueue_latency",
        Kind.GAUGE,
        "Age in ms of the oldest entry that the engine has not loaded, 0 if none",
    ),
    _of_store("rocketmq_timer_dequeue_lag", Kind.GAUGE, "Timers in memory that are overdue"),
    _of_store("rocketmq_timer_dequeue_latency", Kind.GAUGE, "How late the first overdue timer is in ms, 0 if none"),
    _of_store("rocketmq_timer_enqueue_total", Kind.COUNTER, "Timers accepted; a moved timer counts again", "topic"),
    _of_store("rocketmq_timer_dequeue_total", Kind.COUNTER, "Timers delivered", "topic"),
    _of_store("rocketmq_timing_messages", Kind.GAUGE, "Pending timers", "topic"),
    _of_store(
        "rocketmq_timer_message_snapshot",
        Kind.GAUGE,
        "Timers due within this many seconds, but not within the next lower bound; updated periodically",
        "timer_bound_s",
    ),
    Family(
        "latermq_busiest_second",
        Kind.GAUGE,
        "Timers due in the busiest second of the coming hour; updated periodically",
    ),
    _of_store(
        "rocketmq_delay_message_latency",
        Kind.HISTOGRAM,
        "Requested delay of timers in seconds; a renewed timer counts again with its remaining delay",
        scale=1_000,
    ),
    _of_store("rocketmq_storage_size", Kind.GAUGE, "Bytes of the log on disk"),
    _of_store("rocketmq_storage_flush_behind_bytes", Kind.GAUGE, "Bytes of the log that are not flushed yet"),
    _of_store("rocketmq_storage_dispatch_behind_bytes", Kind.GAUGE, "Always 0: queues are written with the log"),
    _of_store("rocketmq_storage_message_reserve_time", Kind.GAUGE, "Age of the oldest message in ms"),
    Family("rocketmq_messages_in_total", Kind.COUNTER, "Messages sent by producers"),
    Family("rocketmq_messages_out_total", Kind.COUNTER, "Messages pulled by consumers"),
    Family("rocketmq_topic_number", Kind.GAUGE, "Topics"),
    Family("rocketmq_consumer_group_number", Kind.GAUGE, "Configured consumer groups"),
    Family("rocketmq_producer_connections", Kind.GAUGE, "Connected producers"),
    Family("rocketmq_consumer_connections", Kind.GAUGE, "Connected consumers"),
    Family(
        "rocketmq_consumer_lag_messages",
        Kind.GAUGE,
        "Messages after the offset of a group in a topic; updated periodically",
        ("consumer_group", "topic"),
    ),
    Family("rocketmq_send_to_dlq_messages_total", Kind.COUNTER, "Messages of groups that became dead letters"),
    Family("latermq_stalled_groups", Kind.GAUGE, "Groups that consume nothing of a topic while messages arrive"),
    Family(
        "latermq_timer_lateness_milliseconds",
        Kind.HISTOGRAM,
        "Store time of delivered messages minus their due time",
        "kind",
    ),
    Family(
        "latermq_early_deliveries_total", Kind.COUNTER, "Deliveries before their due time; always 0 in a correct broker"
    ),
    Family("latermq_deliveries_total", Kind.COUNTER, "Delayed messages delivered", "kind"),
    Family(
        "latermq_dead_letters_total",
        Kind.COUNTER,
        "Delayed messages that could not be delivered and became dead letters",
    ),
    Family("rocketmq_half_messages", Kind.GAUGE, "Open transactions"),
    Family("rocketmq_commit_messages_total", Kind.COUNTER, "Transactions committed"),
    Family("rocketmq_rollback_messages_total", Kind.COUNTER, "Transactions rolled back"),
    Family("latermq_transactions_given_up_total", Kind.COUNTER, "Transactions given up after the last check"),
    Family("latermq_transaction_checks_total", Kind.COUNTER, "Checks sent to producers of open transactions"),
    Family("latermq_transactions_refused_total", Kind.COUNTER, "Half messages refused because too many are open"),
    Family("latermq_timers_cancelled_total", Kind.COUNTER, "Timers cancelled"),
    Family("latermq_timers_moved_total", Kind.COUNTER, "Timers moved to another due time"),
    Family(
        "latermq_timers_renewed_total",
        Kind.COUNTER,
        "Pending timers rewritten to the end of the log before their segment ages out",
    ),
    Family("latermq_timers_refused_total", Kind.COUNTER, "Timers rejected by flow control"),
    Family("latermq_timers_loaded", Kind.GAUGE, "Timers whose positions are loaded ahead of their due time"),
    Family("latermq_staged_messages", Kind.GAUGE, "Messages built ahead of their due time"),
    Family("latermq_staged_bytes", Kind.GAUGE, "Memory used by messages built ahead"),
    Family("latermq_kept_back_messages", Kind.GAUGE, "Due messages that could not be stored yet"),
    Family("latermq_clock_held", Kind.GAUGE, "1 while deliveries are paused because the clock jumped forward"),
    Family(
        "latermq_ingest_lag_milliseconds", Kind.GAUGE, "Age of the oldest timer that Spark has not ingested, 0 if none"
    ),
    Family(
        "latermq_pipeline_refused_total", Kind.COUNTER, "Requests without a valid signature of the pipeline's secret"
    ),
    *ACCESS_FAMILIES,
    Family("latermq_windows_waiting", Kind.GAUGE, "Windows that are cut and not fully loaded"),
    Family(
        "latermq_windows_built_total",
        Kind.COUNTER,
        "Windows chosen for loading, by what built them: spark or local",
        "by",
    ),
    Family("latermq_disk_used_ratio", Kind.GAUGE, "Used share of the data directory's disk, 0 to 1"),
    Family("latermq_queues", Kind.GAUGE, "Queues of all topics; at store.max_queues no queue is added"),
    Family("latermq_consumer_offsets", Kind.GAUGE, "Stored consumer offsets; at broker.max_offsets none is added"),
    Family("latermq_unused_topics", Kind.GAUGE, "Unused auto-created retry topics"),
    Family("latermq_unused_groups", Kind.GAUGE, "Unused auto-created groups"),
    Family("latermq_mapped_queue_files", Kind.GAUGE, "Open queue files"),
    *_OF_CONNECTIONS,
    Family("latermq_waiting_pulls", Kind.GAUGE, "Pulls waiting for messages"),
    Family("latermq_waiting_pops", Kind.GAUGE, "Pops waiting for messages"),
    Family("latermq_pop_in_flight", Kind.GAUGE, "Popped messages that are neither acknowledged nor visible again"),
    Family("latermq_popped_total", Kind.COUNTER, "Popped messages"),
    Family(
        "latermq_pop_acks_total",
        Kind.COUNTER,
        "Acknowledgements by outcome: done, repeated, stale or unknown",
        "outcome",
    ),
    Family("latermq_pop_revived_total", Kind.COUNTER, "Popped messages copied to a retry topic for another attempt"),
    Family("latermq_pop_dead_letters_total", Kind.COUNTER, "Popped messages that became dead letters"),
    Family("latermq_refused_pops_total", Kind.COUNTER, "Pops refused because a limit was reached"),
    Family("latermq_held_notices", Kind.GAUGE, "Notifications queued for clients with unread data"),
    Family(
        "latermq_refused_pulls_total", Kind.COUNTER, "Pulls that could not wait, or stopped waiting in favor of others"
    ),
    Family("latermq_filter_cache_bytes", Kind.GAUGE, "Memory used by compiled filters"),
    Family(
        "latermq_filters_refused_total", Kind.COUNTER, "Filters rejected because they are too long or cannot be parsed"
    ),
    Family(
        "latermq_worn_out_pulls_total",
        Kind.COUNTER,
        "Pulls that ended because their filter used up the work allowed per pull",
    ),
    *_OF_BOUNDS,
)


def server_values(statistics: Mapping[str, int]) -> "dict[str, Value]":
    """The metrics that every server has about its sockets. Missing values are 0, as in a broker without a socket."""
    refused_requests, closed = "refused_requests_", "closed_"
    return {
        "latermq_connections": statistics.get("connections", 0),
        "latermq_connections_refused_total": statistics.get("refused", 0),
        "latermq_connections_held_bytes": statistics.get("held_bytes", 0),
        "latermq_connections_let_go_total": statistics.get("let_go", 0),
        "latermq_connections_paused": statistics.get("paused", 0),
        "latermq_tls_failures_total": statistics.get("tls_failures", 0),
        "latermq_certificate_reload_failures_total": statistics.get("failed_certificate_reloads", 0),
        "latermq_connections_closed_total": _labelled(statistics, closed),
        "latermq_turns_used_up_total": statistics.get("turns_used_up", 0),
        "latermq_metrics_connections_displaced_total": statistics.get("metrics_displaced", 0)
        + statistics.get("metrics_refused", 0),
        "latermq_requests_refused_total": _labelled(statistics, refused_requests),
    }


def access_values(statistics: Mapping[str, int]) -> "dict[str, Value]":
    """The metrics of a server that may check users."""
    return {
        "latermq_access_refused_total": {
            reason: statistics.get(f"{reason}_requests", 0) for reason in ("unauthenticated", "unauthorized")
        },
        "latermq_audit_lost_total": statistics.get("audit_lost", 0),
    }


def copied_access_values(statistics: Mapping[str, int]) -> "dict[str, Value]":
    """The metrics of a server that may copy users from a broker."""
    return {
        **access_values(statistics),
        "latermq_access_users": statistics["access_users"],
        "latermq_access_copy_age_seconds": statistics["access_copy_age_s"],
    }


def _labelled(statistics: Mapping[str, int], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): count for name, count in statistics.items() if name.startswith(prefix)}
