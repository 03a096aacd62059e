"""Failed messages that clients return for a retry."""

from msgspec import Struct


class SendBack(Struct, kw_only=True):
    """A stored message that a consumer sends back, to be retried after a delay level; below 0 it is a dead letter."""

    group: str
    physical_offset: int
    delay_level: int
    max_retries: int | None = None  # None: as many as the group allows


class RetryMessage(Struct, kw_only=True):
    """A message that a client sends to a retry topic itself."""

    topic: str
    queue_id: int
    properties: str
    born_timestamp_ms: int
    flag: int
    sysflag: int
    reconsume_times: int
    max_retries: int | None
    default_topic: str
    default_queues: int
