"""`latermq pipeline status`: the driver, the lag and windows of each broker, and the size of the timeline."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latermq.cli.options import DEFAULT_NAMESRV, ConfigFile, Json, Namesrv, Settings
from latermq.cli.output import print_fields, print_json, print_note, print_rows
from latermq.cli.pipeline.timeline_options import Timeline, pipeline_config, timeline_of
from latermq.cli.views.message_rows import moment
from latermq.redaction import redacted

if TYPE_CHECKING:
    from latermq.pipeline.report.health import BrokerHealth, Health, WindowHealth

_COLUMNS = {
    "broker": "broker",
    "epoch": "epoch",
    "lag": "lag entries",
    "lag_s": "lag s",
    "ready": "windows ready",
    "waiting": "waiting",
    "deadline": "next deadline",
    "built": "built by",
    "note": "note",
}
_WINDOW_COLUMNS = {
    "broker": "broker",
    "window": "window",
    "due_from": "due from",
    "due_until": "until",
    "built_by": "built by",
    "epoch": "epoch",
    "built": "built at",
    "took_s": "took s",
    "rows": "rows",
    "state": "state",
}


def status(
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 unless a driver runs and no broker lags.")
    ] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeline: Timeline = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Show the health of the pipeline. Needs no Spark, and works without a driver, with less.

    Example: latermq pipeline status
    """
    effective = pipeline_config(config, settings, timeline=timeline, master=None)
    folder = timeline_of(effective, namesrv)
    from latermq.pipeline.report.health import pipeline_health
    from latermq.pipeline.timeline.root import open_root

    health = pipeline_health(open_root(folder), namesrv, effective)
    if json:
        _print_json(health)
    else:
        _print(health)
    if check and not health.is_good:
        raise typer.Exit(1)


def _print_json(health: "Health") -> None:
    import msgspec

    values: dict[str, Any] = msgspec.to_builtins(health)
    print_json(values | {"timeline": redacted(health.timeline), "is_good": health.is_good})


def _print(health: "Health") -> None:
    driver, compaction = health.driver, health.last_compaction
    fields: dict[str, Any] = {"driver": health.driver_absent or "does not answer"}
    if driver is not None:
        port = driver["connect_port"]
        connect = f"Spark Connect at localhost:{port}" if port else "no Spark Connect"
        fields["driver"] = f"running since {moment(driver['since_ms'])} on {driver['master']}, {connect}"
    fields["timeline"] = redacted(health.timeline)
    if health.table_error:
        fields["unreadable"] = health.table_error
    for table in health.tables:
        size = f"{table.size_bytes / (1 << 20):,.1f} MiB in {table.files} files, version {table.version}"
        fields[f"table {table.name}"] = size
    fields["last compaction"] = _compaction(compaction)
    fields["stores"] = [f"{store} ({name})" if name else store for store, name in sorted(health.stores.items())]
    print_fields(fields, as_json=False)
    stalled = {feed["broker"]: feed["error"] for feed in (driver or {}).get("brokers", ()) if feed["error"]}
    rows = [_row(one, stalled.get(one.broker, "")) for one in health.brokers]
    print_rows(rows, _COLUMNS, as_json=False, empty="no broker is registered")
    windows = [_window_row(one.broker, window) for one in health.brokers for window in one.last_windows]
    if windows:
        print_rows(windows, _WINDOW_COLUMNS, as_json=False, empty="")
    for one in health.brokers:
        if one.deadline_ms is not None and one.deadline_ms < time.time() * 1000:
            print_note(f"broker {one.broker} builds its next window itself, because Spark has not built it in time")


def _window_row(broker: str, window: "WindowHealth") -> dict[str, Any]:
    return {
        "broker": broker,
        "window": window.window,
        "due_from": moment(window.due_from_ms),
        "due_until": moment(window.due_until_ms),
        "built_by": window.built_by,
        "epoch": window.epoch,
        "built": moment(window.built_ms) if window.built_ms is not None else "-",
        "took_s": round(window.took_ms / 1000, 1) if window.took_ms is not None else None,
        "rows": window.rows,
        "state": "finished" if window.is_finished else "ready",
    }


def _compaction(found: dict[str, Any] | None) -> str:
    if found is None:
        return "none"
    text = str(moment(found["ended_ms"]))
    if "duration_s" in found:
        text += f" after {found['duration_s']:.1f} s: {found['files_before']} files became {found['files_after']}"
        text += f", {found['archived']} rows archived"
    return text


def _row(one: "BrokerHealth", stalled: str) -> dict[str, Any]:
    notes = [one.error, f"stalled: {stalled}" if stalled else ""]
    notes.append("new far timers stay in the broker" if one.keeps_far_timers else "")
    return {
        "broker": one.broker,
        "epoch": one.epoch,
        "lag": one.lag_entries,
        "lag_s": round(one.lag_ms / 1000, 1),
        "ready": one.windows_ready,
        "waiting": one.windows_waiting,
        "deadline": moment(one.deadline_ms) if one.deadline_ms is not None else "-",
        "built": ", ".join(f"{by} {count}" for by, count in sorted(one.built_by.items())) or "-",
        "note": "; ".join(filter(None, notes)),
    }
