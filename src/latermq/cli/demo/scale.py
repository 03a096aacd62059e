"""How much the demo does, and over which time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """The sizes of one run. Times that are half an hour or months in a real shop are seconds here."""

    orders_per_s: int
    most_orders: int
    payment_ms: tuple[int, int]  # an unpaid order is closed after a time in this range
    campaign: int  # timers that Spark schedules
    campaign_ahead_ms: int  # from their scheduling to the first one, well beyond the near horizon
    campaign_spread_ms: int
    clicks: int  # messages that are sent while the broker is killed
    kill_after_clicks: int

    # The defaults are 30 and 10 minutes, 2 minutes, 30 seconds. If Spark lags by more than a window, the broker keeps
    # far timers. If a window is not built by the deadline before it begins, the broker builds it.
    settings: tuple[str, ...] = (
        "pipeline.near_horizon=40s",
        "pipeline.window=20s",
        "pipeline.roll_deadline=8s",
        "pipeline.ingest_every=2s",
        "pipeline.master=local[2]",
    )
    spark_timeout_s: float = 120.0  # for Spark to start and to catch up; longer only on a very busy machine
    deadline_s: float = 900.0


FULL = Scale(10, 5_000, (6_000, 15_000), 50_000, 55_000, 25_000, 20_000, 7_000)
SHORT = Scale(20, 5_000, (3_000, 6_000), 3_000, 50_000, 8_000, 4_000, 1_500)
