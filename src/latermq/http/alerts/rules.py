"""The rules: which figures of a broker, of the pipeline and of the coming hour are worth an alert."""

from collections.abc import Iterator, Mapping, Sequence

from latermq.client import Density
from latermq.config import AlertsConfig
from latermq.http.alerts.alert import Finding, shown
from latermq.http.alerts.signals import BrokerSignals
from latermq.http.timer_request import time_text
from latermq.message.names import DEAD_LETTER_PREFIX
from latermq.model.pipeline_state import PipelineState

LATE = "late"
TIMERS_STUCK = "timers_stuck"
DELIVERY_HELD = "delivery_held"
GROUP_STUCK = "group_stuck"
DEAD_LETTERS = "dead_letters"
DISK = "disk"
WINDOW_OVERDUE = "window_overdue"
BROKER_OFFLINE = "broker_offline"
CLUSTER_UNREACHABLE = "cluster_unreachable"
HEAVY_SECOND = "heavy_second"
OF_BROKERS = (LATE, TIMERS_STUCK, DELIVERY_HELD, GROUP_STUCK, DEAD_LETTERS, DISK)  # from a broker's own figures
RULES = (*OF_BROKERS, WINDOW_OVERDUE, BROKER_OFFLINE, CLUSTER_UNREACHABLE, HEAVY_SECOND)

# An alert ends below this share of its threshold, so that a value near the threshold does not flap.
_KEPT_ABOVE = 0.8
_DISK_MARGIN = 0.02
_DISK_CRITICAL = 0.95
_MINUTE_MS = 60_000


def examine_broker(
    config: AlertsConfig, broker: str, signals: BrokerSignals, p99_ms: float | None
) -> Iterator[Finding]:
    """Apply the rules on one broker's figures."""
    yield from _late(config, broker, p99_ms)
    yield from _deliveries(config, broker, signals)
    yield from _groups(config, broker, signals)
    yield from _disk(config, broker, signals.disk_used_ratio)


def _late(config: AlertsConfig, broker: str, p99_ms: float | None) -> Iterator[Finding]:
    limit_ms = int(config.late)
    if p99_ms is not None and p99_ms > limit_ms * _KEPT_ABOVE:
        yield Finding(
            LATE,
            {"broker": broker},
            round(p99_ms),
            limit_ms,
            f"{shown(broker)} delivers timers late: the 99th percentile of the last {config.late_for / 1000:g} s is "
            f"{p99_ms:,.0f} ms",
            "Look for a heavy second, a slow disk or a busy machine",
            is_bad=p99_ms > limit_ms,
            for_s=config.late_for / 1000,
        )


def _deliveries(config: AlertsConfig, broker: str, signals: BrokerSignals) -> Iterator[Finding]:
    limit_ms, of = int(config.stuck), {"broker": broker}
    if signals.overdue_ms > limit_ms * _KEPT_ABOVE:
        text = f"{signals.overdue_timers:,} timers are due at {shown(broker)} and not delivered, the first since "
        yield Finding(
            TIMERS_STUCK,
            of,
            signals.overdue_ms,
            limit_ms,
            f"{text}{signals.overdue_ms / 1000:,.0f} s",
            "Look at the broker's log, its disk, and latermq pipeline status",
            is_bad=signals.overdue_ms > limit_ms,
            is_critical=True,
        )
    if signals.is_clock_held or signals.kept_back:
        reason = (
            "the clock jumped forward by more than clock.max_step"
            if signals.is_clock_held
            else f"{signals.kept_back:,} due messages cannot be stored"
        )
        hint = "Check the clock of its machine" if signals.is_clock_held else "Make room on its disk"
        text = f"{shown(broker)} holds deliveries: {reason}"
        yield Finding(DELIVERY_HELD, of, signals.kept_back, 0, text, hint, for_s=limit_ms / 1000, is_critical=True)


def _groups(config: AlertsConfig, broker: str, signals: BrokerSignals) -> Iterator[Finding]:
    for stall in signals.stalled:
        if stall.for_ms >= config.group_stuck and stall.lag >= config.group_lag:
            yield Finding(
                GROUP_STUCK,
                {"broker": broker, "group": stall.group, "topic": stall.topic},
                stall.lag,
                config.group_lag,
                f"group {shown(stall.group)} has consumed nothing of {shown(stall.topic)} at {shown(broker)} for "
                f"{stall.for_ms // 1000:,} s while messages arrived: {stall.lag:,} to consume",
                "Check that its consumers run and do not hang",
            )
    for letters in signals.dead_letters:
        if letters.age_ms < config.dead_letters:
            owner = (
                f"group {shown(letters.topic.removeprefix(DEAD_LETTER_PREFIX))}"
                if letters.topic.startswith(DEAD_LETTER_PREFIX)
                else "timers that can never be delivered"
            )
            yield Finding(
                DEAD_LETTERS,
                {"broker": broker, "topic": letters.topic},
                letters.stored,
                0,
                f"new dead letters of {owner} at {shown(broker)}; {letters.stored:,} so far",
                f"latermq dlq list {shown(letters.topic.removeprefix(DEAD_LETTER_PREFIX))} shows the reasons",
            )


def _disk(config: AlertsConfig, broker: str, used: float) -> Iterator[Finding]:
    if used > config.disk - _DISK_MARGIN:
        yield Finding(
            DISK,
            {"broker": broker},
            used,
            config.disk,
            f"the disk of {shown(broker)} is {used:.0%} full",
            "Make room, or shorten store.retention; above store.disk_high new messages are refused",
            is_bad=used > config.disk,
            is_critical=used >= _DISK_CRITICAL,
        )


def examine_pipeline(config: AlertsConfig, broker: str, state: PipelineState) -> Iterator[Finding]:
    """Apply the rule on the windows of one broker."""
    overdue_ms = state.now_ms - state.deadline_ms if state.deadline_ms is not None else 0
    if overdue_ms > config.window_overdue:
        yield Finding(
            WINDOW_OVERDUE,
            {"broker": broker},
            overdue_ms,
            int(config.window_overdue),
            f"a window of far timers of {shown(broker)} is not built {overdue_ms // 1000:,} s after its deadline",
            "latermq pipeline status shows what is wrong, and latermq pipeline windows what cannot be built",
            is_critical=True,
        )


def examine_absence(config: AlertsConfig, away_s: Mapping[str, float]) -> Iterator[Finding]:
    """Apply the rule on brokers that do not answer."""
    for broker, seconds in away_s.items():
        yield Finding(
            BROKER_OFFLINE,
            {"broker": broker},
            round(seconds),
            config.offline / 1000,
            f"{shown(broker)} does not answer",
            "Check its process and the network; its timers are delivered when it is back",
            for_s=config.offline / 1000,
            is_critical=True,
        )


def unreachable(config: AlertsConfig, reason: str) -> Finding:
    """The console knows nothing of the cluster."""
    return Finding(
        CLUSTER_UNREACHABLE,
        {},
        0,
        config.offline / 1000,
        f"the console cannot ask the cluster: {shown(reason)}",
        "Check http.namesrv, and that a name server runs there",
        for_s=config.offline / 1000,
        is_critical=True,
    )


def examine_density(config: AlertsConfig, density: Density) -> Iterator[Finding]:
    """Apply the rule on the timers of the coming hour. Heavy seconds of one minute are one alert."""
    kept_above = config.heavy_second * _KEPT_ABOVE
    minutes: dict[int, tuple[int, int]] = {}
    for second, count in enumerate(_ahead(config, density.seconds)):
        if count > kept_above:
            at_ms = density.start_ms + second * 1000
            minute = at_ms // _MINUTE_MS
            minutes[minute] = max(minutes.get(minute, (0, 0)), (count, at_ms))
    for minute, (count, at_ms) in minutes.items():
        yield Finding(
            HEAVY_SECOND,
            {"minute": time_text(minute * _MINUTE_MS)},
            count,
            config.heavy_second,
            f"{count:,} timers are due in the second at {time_text(at_ms)}",
            "Spread them, or give brokers and consumers room at that time",
            is_bad=count > config.heavy_second,
        )


def _ahead(config: AlertsConfig, seconds: Sequence[int]) -> Sequence[int]:
    return seconds[: max(1, config.heavy_ahead // 1000)]
