"""Composition of the process: what serves requests and metrics receives its parts of the broker here.

Only this module and the process know the whole broker.
"""

from collections.abc import Callable, Mapping

from latermq.broker.broker import Broker
from latermq.broker.metrics.broker_metrics import BrokerMetrics


def broker_metrics(broker: Broker, connections: Callable[[], Mapping[str, int]] = dict) -> BrokerMetrics:
    """The metrics of a broker and of its connections."""
    return BrokerMetrics(
        broker.store,
        broker.timers,
        broker.far,
        broker.ingest,
        broker.topics,
        broker.traffic,
        broker.clock,
        broker.config,
        broker.statistics,
        connections,
    )
