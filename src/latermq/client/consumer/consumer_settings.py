"""The settings of a push consumer and their validation."""

from dataclasses import dataclass
from pathlib import Path

from latermq.client.consumer.offsets import DEFAULT_FOLDER
from latermq.errors import ConfigError
from latermq.message.compression import MAX_BODY_BYTES
from latermq.message.names import check_group

CLUSTERING = "clustering"
BROADCASTING = "broadcasting"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The settings of a push consumer. `PushConsumer` documents each of them."""

    group: str
    concurrency: int = 20
    orderly: bool = False
    model: str = CLUSTERING
    consume_from: str | int = "last"
    max_reconsume_times: int | None = None
    pull_batch: int = 32
    max_cached_messages: int = 1000
    max_cached_bytes: int = 16 * 1024 * 1024
    max_body_bytes: int = MAX_BODY_BYTES
    commit_every_s: float = 5.0
    rebalance_every_s: float = 20.0
    long_poll_s: float = 15.0
    lock_every_s: float = 20.0
    shutdown_wait_s: float = 10.0
    offsets_folder: Path = DEFAULT_FOLDER

    def __post_init__(self) -> None:
        check_group(self.group)
        if self.model not in (CLUSTERING, BROADCASTING):
            raise ConfigError(f"model {self.model!r} is not valid", hint=f"Use {CLUSTERING!r} or {BROADCASTING!r}")
        if self.consume_from not in ("first", "last") and (
            not isinstance(self.consume_from, int) or self.consume_from < 0
        ):
            raise ConfigError(
                f"consume_from {self.consume_from!r} is not valid", hint='Use "first", "last" or epoch milliseconds'
            )
        for name in ("concurrency", "pull_batch", "max_cached_messages", "max_cached_bytes", "max_body_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")

    @property
    def is_clustering(self) -> bool:
        return self.model == CLUSTERING
