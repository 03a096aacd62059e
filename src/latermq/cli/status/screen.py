"""The screen of `latermq top`: a state of the cluster as text, 80 columns wide or more."""

import datetime
import math
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from latermq.cli.output import counted
from latermq.cli.status.probes import GroupLag
from latermq.http.alerts.alert import Alert
from latermq.http.api.cluster import BrokerState, LiveState
from latermq.http.api.density import Bucket
from latermq.visible_text import visible

MIN_WIDTH = 80
_BARS = " ▁▂▃▄▅▆▇█"
_MARKS = (("1s", 1_000), ("1m", 60_000), ("1h", 3_600_000), ("1d", 86_400_000), ("30d", 2_592_000_000))
_SHOWN_BROKERS, _SHOWN_GROUPS, _SHOWN_ALERTS = 12, 5, 6


def screen(
    place: str, state: LiveState | None, lags: Sequence[GroupLag], trouble: str, now: datetime.datetime, keys: str = ""
) -> RenderableType:
    """Lay out a state. With `trouble`, it is the last one that is known."""
    head = Text(f"latermq top  {visible(place)}  {now:%Y-%m-%d %H:%M:%S}", style="bold", no_wrap=True)
    if keys:
        head.append(f"  {keys}", style="dim")
    parts: list[RenderableType] = [head]
    if trouble:
        parts.append(Text(visible(trouble), style="bold red"))
    if state is None:
        return Group(*parts)
    parts += [_totals(state), Text(), *_density(state.density.buckets), Text(), _brokers(state.brokers)]
    parts += _lags(lags)
    parts += _alerts(state.alerts)
    return Group(*parts)


def _totals(state: LiveState) -> Text:
    density = state.density
    late_ms = max((broker.late_ms for broker in state.brokers), default=0)
    counts = f"{density.pending:,} pending · {density.next_hour:,} in the next hour"
    text = Text(f"{counts} · busiest second {density.busiest_second:,} · ")
    return text.append(*(("on time", "green") if not late_ms else (f"{late_ms / 1000:,.1f} s late", "bold red")))


def _density(buckets: Sequence[Bucket]) -> list[RenderableType]:
    """Pending timers by due time, on a logarithmic axis, each column relative to the highest."""
    last = max((number for number, bucket in enumerate(buckets) if bucket.timers), default=0)
    end = max(last, next((n for n, bucket in enumerate(buckets) if bucket.until_ms > 86_400_000), last)) + 1
    highest = math.log1p(max((bucket.timers for bucket in buckets), default=0)) or 1.0
    columns = ""
    for bucket in buckets[:end]:
        level = math.ceil(math.log1p(bucket.timers) / highest * (len(_BARS) - 1)) if bucket.timers else 0
        columns += _BARS[level]
    axis = [" "] * (end + 4)
    for mark, at_ms in _MARKS:
        at = next((number for number, bucket in enumerate(buckets[:end]) if bucket.until_ms >= at_ms), None)
        if at is not None:
            axis[at : at + len(mark)] = mark
    return [
        Text(f"due in  {columns}", no_wrap=True),
        Text(f"        {''.join(axis)}".rstrip(), style="dim", no_wrap=True),
    ]


def _brokers(brokers: Sequence[BrokerState]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, expand=False)
    table.add_column("broker", overflow="ellipsis", max_width=16, no_wrap=True)
    for heading in ("in/s", "out/s", "timers/s", "due/s", "pending", "late", "disk"):
        table.add_column(heading, justify="right", no_wrap=True)
    for broker in sorted(brokers, key=lambda one: (not one.error, -one.late_ms, one.broker))[:_SHOWN_BROKERS]:
        name = visible(broker.broker)
        if broker.error:
            table.add_row(name, Text("down", style="bold red"), *[""] * 6)
            continue
        late = Text(f"{broker.late_ms / 1000:.1f} s", style="bold red") if broker.late_ms else Text("-")
        table.add_row(
            name,
            _short(broker.messages_in_rate),
            _short(broker.messages_out_rate),
            _short(broker.timers_in_rate),
            _short(broker.timers_delivered_rate),
            _short(broker.pending_timers),
            late,
            f"{broker.disk_used_ratio:.0%}",
        )
    more = len(brokers) - _SHOWN_BROKERS
    return Group(table, Text(f"and {counted(more, 'more broker')}", style="dim")) if more > 0 else table


def _lags(lags: Sequence[GroupLag]) -> list[RenderableType]:
    if not lags:
        return []
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("group", overflow="ellipsis", max_width=50, no_wrap=True)
    table.add_column("messages behind", justify="right", no_wrap=True)
    for one in lags[:_SHOWN_GROUPS]:
        table.add_row(visible(one.group), f"{one.lag:,}")
    more = len(lags) - _SHOWN_GROUPS
    found: list[RenderableType] = [Text(), table]
    return [*found, Text(f"and {counted(more, 'more group')}", style="dim")] if more > 0 else found


def _alerts(alerts: Sequence[Alert]) -> list[RenderableType]:
    if not alerts:
        return []
    found: list[RenderableType] = [Text()]
    for alert in alerts[:_SHOWN_ALERTS]:
        style = "bold red" if alert.severity == "critical" else "yellow"
        found.append(Text(f"! {visible(alert.text)}", style=style, no_wrap=True, overflow="ellipsis"))
    more = len(alerts) - _SHOWN_ALERTS
    return [*found, Text(f"and {counted(more, 'more alert')}", style="dim")] if more > 0 else found


def _short(number: float) -> str:
    """A number in at most six characters: 12, 1.2, 12.3k, 1.2M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= limit:
            return f"{number / (limit if unit != 'k' else 1e3):.1f}{unit}"
    return f"{number:.1f}" if number % 1 and number < 100 else f"{number:,.0f}"
