"""The sizes of the benchmarks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Full size by default. Sync sends, paced sends and the path take a third of `messages`."""

    messages: int = 300_000
    repeats: int = 3
    warm: int = 300_000
    stored: int = 1_000_000
    size: int = 200
    async_threads: int = 4
    in_flight: int = 2_000
    sync_threads: int = 16
    consume_threads: int = 4
    rate: float = 10_000.0
    delayed: int = 50_000
    level: int = 2
    burst: int = 500_000
    timers: int = 100_000
    spread_s: float = 30.0
    pending: tuple[int, ...] = (100_000, 1_000_000)
    sample: int = 20_000
    growth: float = 50_000.0
    rolled: int = 2_000
    far_warm: int = 100_000
    far_part: int = 1_000_000
    far_parts: int = 10
    far_near: int = 500_000
    bulk: int = 200_000
    timeline_rows: tuple[int, ...] = (1_000_000, 10_000_000)
    attack_s: float = 10.0
    calm_s: float = 5.0
    # gRPC and POP
    grpc_warm_s: float = 40.0
    grpc_s: float = 5.0
    grpc_messages: int = 50_000
    grpc_delayed: int = 5_000
    grpc_spread_s: float = 5.0
    grpc_ahead_s: float = 4.0
    grpc_invisible_s: float = 30.0
    # Apache's broker revives up to 5 s after the invisible time.
    grpc_later_s: float = 36.0
    waiting: int = 5_000
    # HTTP
    http_requests: int = 20_000
    http_timers: int = 1_000_000
    viewers: int = 50
    watch_s: float = 30.0

    @property
    def third(self) -> int:
        return max(1, self.messages // 3)
