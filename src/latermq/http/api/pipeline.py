"""The pipeline as brokers see it: ingest lag, windows and who built them; and its runs, from the timeline's history."""

import asyncio
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec

from latermq.errors import LaterMQError
from latermq.http.brokers import Brokers
from latermq.http.endpoint import Answer, Call, Endpoint
from latermq.http.far_timers import FarTimers
from latermq.http.timeline_process import TimelineUnavailable
from latermq.http.timer_request import time_text
from latermq.model.pipeline_state import ChosenWindow, PipelineState

MAX_RUNS = 200

WindowStep = Literal["waiting", "ready", "delivering", "delivered"]


class WindowInfo(msgspec.Struct, omit_defaults=True):
    """A window: timers due in [from, until).

    `waiting`: not built yet. `ready`: built, and loaded before it is due. `delivering`: its first timers are due.
    `delivered`: all of its timers are done. `built_by` is `spark`, `driver` (without Spark) or `local` (the broker).
    """

    number: int
    from_ms: int
    until_ms: int
    state: WindowStep
    built_by: str = ""
    epoch: int | None = None
    timers: int | None = None


class PipelineReport(msgspec.Struct, omit_defaults=True):
    """The pipeline as one broker sees it, or why it does not say. Epoch 0: no driver has ever begun.

    `windows` are those that are not delivered, and the latest that are.
    """

    broker: str
    error: str = ""
    store_id: str = ""
    epoch: int = 0
    lag_entries: int = 0
    lag_ms: int = 0
    keeps_far_timers: bool = False
    windows_ready: int = 0
    windows_waiting: int = 0
    deadline_ms: int | None = None
    built_by: dict[str, int] = {}
    windows: list[WindowInfo] = []


class PipelineReports(msgspec.Struct):
    """The pipeline as all brokers see it."""

    brokers: list[PipelineReport]


class RunQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How many runs, the latest first."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_RUNS)] = 50


class PipelineRun(msgspec.Struct, omit_defaults=True):
    """A change of the timeline: by `ingest`, by `compaction`, or another one, such as `create table`."""

    run: str
    at: str
    at_ms: int
    version: int
    rows: int | None = None
    files_added: int | None = None
    files_removed: int | None = None
    took_ms: int | None = None


class PipelineRuns(msgspec.Struct):
    """The latest runs. `missing` says why there are none, if there may be."""

    runs: list[PipelineRun]
    missing: str = ""


class PipelineApi:
    """The requests on the pipeline."""

    def __init__(self, brokers: Brokers, far: FarTimers) -> None:
        self._brokers = brokers
        self._far = far

    @property
    def endpoints(self) -> list[Endpoint]:
        path, ok, subject = "/api/v1/pipeline", HTTPStatus.OK, "cluster"
        runs = path + "/runs"
        return [
            Endpoint("GET", path, self._show, "Show the pipeline", {ok: PipelineReports}, subject),
            Endpoint("GET", runs, self._runs, "List its runs", {ok: PipelineRuns}, subject, query=RunQuery),
        ]

    async def _show(self, call: Call) -> Answer:
        masters = await self._brokers.masters()
        return Answer(PipelineReports(list(await asyncio.gather(*map(self._report, masters, masters.values())))))

    async def _report(self, name: str, address: str) -> PipelineReport:
        try:
            return report_of(name, await self._brokers.pipeline_state(address))
        except LaterMQError as error:
            return PipelineReport(name, error.message)

    async def _runs(self, call: Call) -> Answer:
        try:
            commits = await self._far.commits(await self._brokers.masters(), call.query.limit)
        except TimelineUnavailable as error:
            return Answer(PipelineRuns([], f"{error.message}. {error.hint}"))
        return Answer(
            PipelineRuns(
                [
                    PipelineRun(
                        one.kind,
                        time_text(one.at_ms),
                        one.at_ms,
                        one.version,
                        one.rows,
                        one.files_added,
                        one.files_removed,
                        one.took_ms,
                    )
                    for one in commits
                ]
            )
        )


def report_of(name: str, state: PipelineState) -> PipelineReport:
    """Return what a broker reports."""
    ready = sum(bool(window.attempt) for window in state.windows)
    return PipelineReport(
        name,
        "",
        state.store_id,
        state.epoch,
        max(0, state.flushed_entry - state.ingest_offset) if state.epoch else 0,
        state.lag_ms,
        state.keeps_far_timers,
        ready,
        len(state.windows) - ready,
        state.deadline_ms,
        state.built_by,
        windows_of(state),
    )


def windows_of(state: PipelineState) -> list[WindowInfo]:
    """Return the windows of a broker in their order."""
    chosen = {one.number: one for one in state.last_windows}
    for one in state.windows:  # a broker of an earlier release does not tell the last windows
        if one.attempt and one.number not in chosen:
            chosen[one.number] = ChosenWindow(one.number, one.from_ms, one.until_ms, one.attempt)
    found = [
        WindowInfo(
            one.number,
            one.from_ms,
            one.until_ms,
            "delivered" if one.is_finished else "delivering" if one.from_ms <= state.now_ms else "ready",
            one.built_by,
            one.epoch,
            one.rows,
        )
        for one in chosen.values()
    ]
    waiting = (one for one in state.windows if not one.attempt)
    found += [WindowInfo(one.number, one.from_ms, one.until_ms, "waiting") for one in waiting]
    return sorted(found, key=lambda window: window.number)
