"""Checks of the settings of the pipeline and of alerts that depend on each other."""

from latermq.config import (
    MAX_HEAVY_AHEAD_MS,
    MAX_NEAR_HORIZON_MS,
    MIN_ALERTS_EVERY_MS,
    MIN_BUILD_TIMEOUT_MS,
    MIN_DRIVER_MEMORY_BYTES,
    MIN_NEAR_HORIZON_MS,
    MIN_TOKEN_CHARS,
    AlertsConfig,
    PipelineConfig,
)
from latermq.errors import ConfigError
from latermq.webhook_urls import webhook_urls


def check_alerts(alerts: AlertsConfig) -> None:
    try:
        webhook_urls(alerts.webhook)
    except ValueError as error:
        raise ConfigError(
            f"alerts.webhook is malformed: {error}",
            hint="Write http://HOST:PORT/PATH or https://HOST/PATH, without user, spaces and #",
        ) from None
    if alerts.webhook_secret and len(alerts.webhook_secret) < MIN_TOKEN_CHARS:
        raise ConfigError(
            f"alerts.webhook_secret must have at least {MIN_TOKEN_CHARS} characters",
            hint="Create one: openssl rand -hex 32",
        )
    if not 0 < alerts.disk <= 1:
        raise ConfigError("alerts.disk must be above 0 and at most 1")
    if alerts.heavy_ahead > MAX_HEAVY_AHEAD_MS:
        raise ConfigError("alerts.heavy_ahead must be at most 1h: brokers count seconds one hour ahead")
    if alerts.every < MIN_ALERTS_EVERY_MS:
        raise ConfigError("alerts.every must be at least 1s")
    for name in (
        "webhook_timeout",
        "retry_for",
        "heavy_ahead",
        "heavy_second",
        "late",
        "group_lag",
        "max_alerts",
        "max_unsent",
    ):
        if getattr(alerts, name) < 1:
            raise ConfigError(f"alerts.{name} must be above 0")


def check_pipeline(pipeline: PipelineConfig) -> None:
    if not MIN_NEAR_HORIZON_MS <= pipeline.near_horizon <= MAX_NEAR_HORIZON_MS:
        raise ConfigError("pipeline.near_horizon must be 1s to 2d, the range of the broker's timer wheel")
    if not 0 < pipeline.window <= pipeline.near_horizon // 2:
        raise ConfigError("pipeline.window must be above 0 and at most half of pipeline.near_horizon")
    lead_ms = pipeline.near_horizon - pipeline.window
    if not 0 < pipeline.roll_deadline < lead_ms:
        raise ConfigError(
            f"pipeline.roll_deadline must be above 0 and below {lead_ms} ms, "
            "the time that pipeline.near_horizon leaves before a window begins"
        )
    if pipeline.driver_memory < MIN_DRIVER_MEMORY_BYTES:
        raise ConfigError("pipeline.driver_memory must be at least 512MiB: Spark refuses to start with less")
    if pipeline.roll_timeout < MIN_BUILD_TIMEOUT_MS:
        raise ConfigError("pipeline.roll_timeout must be at least 1s: the build process needs time to start")
    if not 0 <= pipeline.connect_port <= 65_535:
        raise ConfigError(f"pipeline.connect_port must be 0–65535, not {pipeline.connect_port}")
    if pipeline.archive_keep < pipeline.keep:
        raise ConfigError(
            f"pipeline.archive_keep is {pipeline.archive_keep}, shorter than pipeline.keep, {pipeline.keep}",
            hint="Rows would leave the archive when they enter it",
        )
    if pipeline.roll_spark_rows < 0:
        raise ConfigError(
            f"pipeline.roll_spark_rows is {pipeline.roll_spark_rows}, and must not be negative",
            hint="0 builds every window on Spark, as pipeline.roll_on = spark does",
        )
    if pipeline.roll_local_rows < 1:
        raise ConfigError(f"pipeline.roll_local_rows is {pipeline.roll_local_rows}, and must be at least 1")
    if pipeline.compact_unplaced < 0:
        raise ConfigError("pipeline.compact_unplaced must not be negative")
    if pipeline.compact_new <= 0:
        raise ConfigError("pipeline.compact_new must be above 0")
    if not pipeline.compact_every:
        raise ConfigError("pipeline.compact_every must be above 0")
    if not 0 < pipeline.ingest_every <= lead_ms - pipeline.roll_deadline:
        raise ConfigError(
            "pipeline.ingest_every is too long: timers must be ingested before their windows' pipeline.roll_deadline"
        )
