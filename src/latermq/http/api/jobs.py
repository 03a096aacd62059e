"""Jobs over HTTP: begun, previewed, watched and aborted."""

import asyncio
from http import HTTPStatus
from typing import Annotated

import msgspec

from latermq.access.resources import GET, UPDATE, Action
from latermq.clock import Clock
from latermq.config import HttpConfig
from latermq.errors import InvalidParameter
from latermq.http.api.access_rules import cluster_access, job_accesses
from latermq.http.api.timers import IDEMPOTENCY_KEY, idempotency_key
from latermq.http.api.topics import Limit
from latermq.http.endpoint import Answer, Call, Endpoint
from latermq.http.jobs.job import Impossible, Job, JobPreview, NewJob, order_of
from latermq.http.jobs.runner import JobRunner, Requester
from latermq.http.jobs.work import Work
from latermq.http.paging import page_limit


class JobList(msgspec.Struct):
    """All jobs that the console keeps, the newest first. `is_durable` says whether they outlive the console.

    If `is_partial`, only those are listed that touch nothing but what the user has a right to.
    """

    jobs: list[Job]
    is_durable: bool
    is_partial: bool = False


class ImpossibleQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A page of what was not possible."""

    limit: Limit = None
    cursor: Annotated[str, msgspec.Meta(max_length=20)] = ""


class ImpossiblePage(msgspec.Struct):
    """What a job could not change. `next` is the cursor of the next page, empty on the last."""

    impossible: list[Impossible]
    next: str = ""


class JobApi:
    """The requests on jobs."""

    def __init__(self, runner: JobRunner, works: dict[str, Work], config: HttpConfig, clock: Clock) -> None:
        self._runner = runner
        self._works = works
        self._max_page = config.max_page
        self._clock = clock
        self._previews = asyncio.Semaphore(config.max_running_jobs)  # each is a search of some seconds at the brokers

    @property
    def endpoints(self) -> list[Endpoint]:
        path, ok, subject = "/api/v1/jobs", HTTPStatus.OK, "jobs"
        one = path + "/{id}"
        return [
            Endpoint(
                "POST",
                path,
                self._create,
                "Cancel or move timers, or send dead letters again, by filter",
                {HTTPStatus.ACCEPTED: Job, ok: JobPreview},
                subject,
                body=NewJob,
                headers=(IDEMPOTENCY_KEY,),
                meaning="Answered with 200 and a preview if `dry_run` is true, and otherwise with 202 and the job.",
            ),
            Endpoint("GET", path, self._list, "List jobs", {ok: JobList}, subject),
            Endpoint("GET", one, self._show, "Show a job", {ok: Job}, subject),
            Endpoint("POST", one + "/abort", self._abort, "Abort a job", {ok: Job}, subject),
            Endpoint("DELETE", one, self._forget, "Forget a finished job", {HTTPStatus.NO_CONTENT: None}, subject),
            Endpoint(
                "GET",
                one + "/impossible",
                self._impossible,
                "List what a job could not change",
                {ok: ImpossiblePage},
                subject,
                query=ImpossibleQuery,
            ),
        ]

    async def _create(self, call: Call) -> Answer:
        new: NewJob = call.body
        key = idempotency_key(call)
        order = order_of(new, self._clock.now_ms())
        if new.dry_run:
            async with self._previews:
                return Answer(await self._works[order.action].preview(order))
        by = Requester()
        if call.rights is not None:
            by = Requester(call.rights.user, call.rights.source, not call.sees(cluster_access(UPDATE)))
        job, is_known = await self._runner.create(order, key, msgspec.json.encode(new), by)
        headers = {"Location": f"/api/v1/jobs/{job.id}"} | ({"Idempotency-Replayed": "true"} if is_known else {})
        return Answer(job, HTTPStatus.ACCEPTED, headers)

    async def _list(self, call: Call) -> Answer:
        return Answer(JobList(await self._runner.jobs(), self._runner.is_durable))

    async def _show(self, call: Call) -> Answer:
        return Answer(await self._permitted(call, GET))

    async def _permitted(self, call: Call, action: Action) -> Job:
        """Return the job, if the user has this right to the cluster, or could have begun it."""
        job = await self._runner.find(call.path["id"])
        if not call.sees(cluster_access(action)):
            for access in job_accesses(job.order):
                call.permit(access)
        return job

    async def _abort(self, call: Call) -> Answer:
        job = await self._permitted(call, UPDATE)
        return Answer(await self._runner.abort(job.id))

    async def _forget(self, call: Call) -> Answer:
        job = await self._permitted(call, UPDATE)
        await self._runner.forget(job.id)
        return Answer(status=HTTPStatus.NO_CONTENT)

    async def _impossible(self, call: Call) -> Answer:
        query: ImpossibleQuery = call.query
        if query.cursor and not (query.cursor.isascii() and query.cursor.isdigit()):
            raise InvalidParameter(f"{query.cursor!r} is not a cursor", hint="Use `next` of the previous page")
        limit = page_limit(query.limit, self._max_page)
        job = await self._permitted(call, GET)
        rows, after = await self._runner.impossible(job.id, int(query.cursor or 0), limit)
        return Answer(ImpossiblePage(rows, str(after) if after >= 0 else ""))
