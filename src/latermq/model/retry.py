"""Messages that a consumer could not handle, as clients give them back."""

from msgspec import Struct


class SendBack(Struct, kw_only=True):
    """A stored message that a consumer gives back, to wait at this delay level; below 0 it gives it up."""

    group: str
    physical_offset: int
    delay_level: int
    max_retries: int | None = None  # None: as many as the group allows


class RetryMessage(Struct, kw_only=True):
    """A message that a client puts into a retry topic by itself."""

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
