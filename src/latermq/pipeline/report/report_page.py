"""The report as one self-contained HTML page with figures, plots and tables."""

import datetime
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from latermq.pipeline.report.report_plots import OTHERS, largest_series, lines, stacked_bars

if TYPE_CHECKING:
    from latermq.pipeline.report.report import Report

_COLOURS = ("#2a78d6", "#1baf7a", "#eda100", "#008300", "#4a3aa7", "#e34948", "#e87ba4", "#eb6834")
_FATES = ("delivered", "dead letter", "cancelled", "moved", "not kept", "missing")
_STYLE = """
:root{color-scheme:light dark;--ink:#1d2330;--soft:#6b7280;--line:#d9dde3;--paper:#fff}
@media (prefers-color-scheme:dark){:root{--ink:#e6e8ec;--soft:#9aa3b2;--line:#39404d;--paper:#14171d}}
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2rem auto;padding:0 1rem;color:var(--ink);
background:var(--paper)}
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2.2rem}
p.range,.legend,td.none{color:var(--soft)}
.tiles{display:flex;flex-wrap:wrap;gap:.8rem;margin:1.2rem 0}
.tiles div{border:1px solid var(--line);border-radius:8px;padding:.6rem 1rem;min-width:7rem}
.tiles b{display:block;font-size:1.4rem;font-variant-numeric:tabular-nums}
.bad b{color:#d33}
.verdict{padding:.6rem 1rem;border-radius:8px;border:1px solid var(--line);font-weight:600}
.verdict.clean::before{content:"\\2713  "}.verdict.bad::before{content:"\\2717  "}.verdict.bad{border-color:#d33}
svg{width:100%;height:auto}svg text{font-size:11px;fill:var(--soft)}.grid{stroke:var(--line)}
polyline{fill:none;stroke-width:2}
.legend span{margin-right:1.2rem}
.legend i{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.25rem .7rem;border-bottom:1px solid var(--line)}
th{font-weight:600}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
"""


def render_page(report: "Report") -> str:
    """Render the whole page."""
    verdict = "clean" if report.is_clean else "bad"
    summary = (
        "Every timer of this period was delivered exactly once and not early, or was cancelled or moved."
        if report.is_clean
        else "Some timers of this period are missing, early or duplicated: see below."
    )
    body = [
        "<h1>Timers: forecast and reconciliation</h1>",
        f'<p class="range">Created {_moment(report.made_ms)}. The reconciliation covers timers due from '
        f"{_moment(report.from_ms)} until {_moment(report.until_ms)}.</p>",
        f'<p class="verdict {verdict}">{summary}</p>',
        *([f'<p class="absent">Not covered: {escape(", ".join(report.absent))}.</p>'] if report.absent else []),
        _tiles(report),
        "<h2>Forecast</h2>",
        _forecast(report),
        "<h2>Busiest seconds</h2>",
        _table(report.worst, {"second": "second", "timers": "timers", "topics": "topics", "most_of": "largest topic"}),
        "<h2>Lateness</h2>",
        _lateness(report),
        "<h2>Reconciliation</h2>",
        _reconciliation(report),
    ]
    if report.brokers:
        body += ["<h2>Pipeline</h2>", _pipeline(report)]
    if report.missing:
        columns = ("due_ms", "topic", "unique_key", "keys", "store_id", "entry_offset")
        body += ["<h2>Missing</h2>", _table(report.missing, {name: name.replace("_", " ") for name in columns})]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Timers</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}{_colours()}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _tiles(report: "Report") -> str:
    numbers = {
        "waiting": report.waiting,
        "scheduled": report.scheduled,
        **{fate: report.count(fate) for fate in _FATES if fate not in ("not kept", "missing") or report.count(fate)},
        "missing": report.count("missing"),
        "early": report.early,
        "delivered twice": report.doubled,
    }
    return f'<div class="tiles">{"".join(_tile(name, count) for name, count in numbers.items())}</div>'


def _tile(name: str, count: int) -> str:
    look = " class=bad" if count and name in ("missing", "early", "delivered twice") else ""
    return f'<div id="{name.replace(" ", "-")}"{look}><b>{count:,}</b>{name}</div>'


def _forecast(report: "Report") -> str:
    if not report.spans:
        return "<p>There are no pending timers.</p>"
    totals: dict[str, float] = {}
    for row in report.spans:
        totals[row["topic"]] = totals.get(row["topic"], 0) + row["timers"]
    names = largest_series(totals)
    count = max(row["bucket"] for row in report.spans) + 1
    series = {name: [0.0] * count for name in names}
    for row in report.spans:
        series[row["topic"] if row["topic"] in series else OTHERS][row["bucket"]] += row["timers"]
    labels = [_second(report.spans_from_s + number * report.span_s) for number in range(count)]
    span = str(datetime.timedelta(seconds=report.span_s))
    return f"<p>Timers due in each span of {span}.</p>" + stacked_bars(
        labels, series, unit="timers", title="timers due over time by topic"
    )


def _lateness(report: "Report") -> str:
    if not report.lateness:
        return "<p>No timers were delivered.</p>"
    hours = sorted({row["hour"] for row in report.lateness})
    worst: dict[str, list[float | None]] = {}
    for name in ("p50_ms", "p99_ms", "max_ms"):
        worst[name.replace("_ms", "")] = [
            max(float(row[name]) for row in report.lateness if row["hour"] == hour) for hour in hours
        ]
    columns = {"hour": "hour", "topic": "topic", "timers": "timers", "p50_ms": "p50 ms", "p99_ms": "p99 ms"}
    plot = lines([_text(hour) for hour in hours], worst, unit="ms", title="highest lateness of any topic, by hour")
    note = (
        "<p>Time from the due time until the message is stored in its topic. "
        "The plot shows the highest value of any topic.</p>"
    )
    return note + plot + _table(report.lateness, {**columns, "max_ms": "max ms", "early": "early"})


def _reconciliation(report: "Report") -> str:
    shown = [fate for fate in _FATES if fate != "not kept" or report.count(fate)]
    rows: list[dict[str, Any]] = [
        {"topic": topic, **{fate: report.fates[topic].get(fate, 0) for fate in shown}} for topic in sorted(report.fates)
    ]
    return _table(rows, {"topic": "topic", **{fate: fate for fate in shown}})


def _pipeline(report: "Report") -> str:
    columns = {
        "broker": "broker",
        "lag_entries": "lag, entries",
        "lag_s": "lag, s",
        "windows_ready": "windows ready",
        "windows_waiting": "windows waiting",
        "built_by": "windows built by",
        "keeps": "new far timers go to",
    }
    rows = [
        {
            "broker": one.broker,
            "lag_entries": one.lag_entries,
            "lag_s": one.lag_ms / 1000,
            "windows_ready": one.windows_ready,
            "windows_waiting": one.windows_waiting,
            "built_by": ", ".join(f"{by}: {count}" for by, count in sorted(one.built_by.items())) or None,
            "keeps": "the broker, because Spark lags"
            if one.keeps_far_timers
            else "Spark"
            if one.epoch
            else "the broker",
        }
        for one in report.brokers
    ]
    return _table(rows, columns)


def _table(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> str:
    if not rows:
        return "<p>None.</p>"
    numeric = {name for name in columns if all(isinstance(row.get(name), int | float) for row in rows)}

    def cells(tag: str, values: Iterable[tuple[str, str]]) -> str:
        return "".join(f"<{tag}{' class=n' if name in numeric else ''}>{text}</{tag}>" for name, text in values)

    head = cells("th", ((name, escape(title)) for name, title in columns.items()))
    body = "".join(
        f"<tr>{cells('td', ((name, escape(_text(row.get(name)))) for name in columns))}</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _moment(epoch_ms: int) -> str:
    return _second(epoch_ms // 1000) + " UTC"


def _second(epoch_s: int) -> str:
    return datetime.datetime.fromtimestamp(epoch_s, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _colours() -> str:
    return "".join(
        f".s{number}{{fill:{colour}}}.l{number}{{stroke:{colour}}}.b{number}{{background:{colour}}}"
        for number, colour in enumerate(_COLOURS)
    )
