"""How near a broker is to each of its bounds: what an operator looks at before a client is refused."""

from collections.abc import Mapping

from latermq.config import Config

# The setting, what of the statistics counts towards it, and the statistic that tells the bound where it may be lowered.
LIMITS = (
    ("broker.max_topics", "topics", ""),
    ("broker.max_groups", "groups", ""),
    ("broker.max_offsets", "consumer_offsets", ""),
    ("broker.max_clients", "clients", ""),
    ("broker.max_subscriptions", "subscription_bytes", ""),
    ("broker.max_queue_locks", "queue_locks", ""),
    ("broker.max_waiting_pulls", "waiting_pulls", ""),
    ("broker.max_waiting_filters", "waiting_filters_bytes", ""),
    ("broker.max_held_notices", "notices_held_bytes", ""),
    ("broker.filter_cache", "filters_kept_bytes", ""),
    ("broker.max_unflushed", "unflushed_replies", ""),
    ("broker.max_unsaved", "unsaved_changes", ""),
    ("broker.max_client_calls", "client_calls", ""),
    ("store.max_queues", "queues", ""),
    ("store.max_open_queues", "mapped_queue_files", "max_mapped_queue_files"),
    ("server.max_connections", "connections", "max_connections"),
    ("server.max_held", "held_bytes", ""),
    ("timer.stage", "staged_bytes", ""),
    ("timer.max_waiting", "timers_unput", ""),
    ("timer.max_loaded", "timers_loaded", ""),
)


def limits(config: Config, statistics: Mapping[str, int]) -> tuple[dict[str, float], dict[str, float]]:
    """Each bound by its setting, and how much of it is used. What nobody counts, as a broker without a socket, is 0."""
    bounds: dict[str, float] = {}
    used: dict[str, float] = {}
    for setting, counted, lowered in LIMITS:
        section, _, key = setting.partition(".")
        bounds[setting] = statistics.get(lowered, int(getattr(getattr(config, section), key)))
        used[setting] = statistics.get(counted, 0)
    return bounds, used
