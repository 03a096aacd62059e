"""The console process: its socket, its connections to brokers and its parts, from start to clean stop."""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import replace

import uvloop

from latermq.client import Producer, PullConsumer
from latermq.client.access.copied_access import NO_COPY
from latermq.client.scheduling.scheduler import TimerScheduler
from latermq.client.session.credentials import own_credentials
from latermq.clock import Clock, SystemClock
from latermq.config import Config
from latermq.http.alerts.monitor import AlertMonitor
from latermq.http.api.access_rules import job_accesses, with_rules
from latermq.http.api.alerts import AlertApi
from latermq.http.api.cluster import ClusterApi
from latermq.http.api.dead_letter_export import DeadLetterExportApi
from latermq.http.api.dead_letters import READER_GROUP, DeadLetterApi
from latermq.http.api.density import DensityApi
from latermq.http.api.forecast import ForecastApi
from latermq.http.api.groups import GroupApi
from latermq.http.api.health import HealthApi
from latermq.http.api.jobs import JobApi
from latermq.http.api.lateness import LatenessApi
from latermq.http.api.live import LiveApi
from latermq.http.api.message_trace import MessageTraceApi
from latermq.http.api.partial_lists import with_visible
from latermq.http.api.pipeline import PipelineApi
from latermq.http.api.throughput import ThroughputApi
from latermq.http.api.timer_batches import TimerBatchApi
from latermq.http.api.timer_history import TimerHistoryApi
from latermq.http.api.timer_list import TimerListApi
from latermq.http.api.timers import TimerApi
from latermq.http.api.topic_messages import TopicMessageApi
from latermq.http.api.topics import TopicApi
from latermq.http.api.what_if import WhatIfApi
from latermq.http.app import ConsoleApp
from latermq.http.brokers import name_servers_of, open_brokers
from latermq.http.collector import Collector
from latermq.http.console.console import Console
from latermq.http.endpoint import Endpoint, routes_of
from latermq.http.far_timers import FarTimers
from latermq.http.jobs.job_files import Kept
from latermq.http.jobs.resend_work import ResendWork
from latermq.http.jobs.runner import JobRunner
from latermq.http.jobs.timer_work import TimerWork
from latermq.http.jobs.work import Work
from latermq.http.listener import HttpListener
from latermq.http.metrics import ConsoleMetrics
from latermq.http.openapi import OpenApi
from latermq.http.security.cluster_users import ClusterUsers
from latermq.http.security.sessions import Sessions
from latermq.http.security.sign_in import SignIn
from latermq.tls.client import own_tls
from latermq.tls.front import TlsFront
from latermq.tls.reloading import ReloadedContext
from latermq.tls.server_certificates import configured_certificate, open_web_context

PRODUCER_GROUP = "latermq-console"


class ConsoleProcess:
    """A console with its sockets. Call `start`, then `stop`, once each."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self.brokers = open_brokers(config)
        servers, timeout_s = name_servers_of(config), config.http.broker_timeout / 1000
        tls, credentials = own_tls(config.tls) or False, own_credentials(config.access) or False
        self._reader = PullConsumer(
            servers, group=READER_GROUP, request_timeout_s=timeout_s, tls=tls, credentials=credentials
        )
        self._producer = Producer(
            servers, group=PRODUCER_GROUP, send_timeout_s=timeout_s, tls=tls, credentials=credentials
        )
        self._far = FarTimers(self.brokers, config)
        self._scheduler = TimerScheduler(self.brokers)
        self._timers = TimerListApi(self.brokers, self._far, config.http)
        timer_work = TimerWork(self.brokers, self._timers)
        resend_work = ResendWork(self.brokers, self._reader, self._scheduler)
        self._works: dict[str, Work] = {"cancel": timer_work, "move": timer_work, "resend": resend_work}
        self.jobs = JobRunner(config.http, clock, self._works, self._authorize)
        density = DensityApi(self.brokers)
        self.alerts = AlertMonitor(config.alerts, clock, self.brokers.pipeline_state, lambda: self.address)
        self._cluster = ClusterApi(self.brokers, density, self.alerts)
        watch_every_s = config.alerts.every / 1000 if self.alerts.must_watch else None
        self.collector = Collector(self._cluster.collect, config.http.max_streams, watch_every_s)
        self.metrics = ConsoleMetrics(config, lambda: self.address, self.statistics)
        self.endpoints = self._endpoints(density, clock)
        checks_users = config.access.enabled and config.access.mode == "enforce"
        self._users = ClusterUsers(config, clock, self.brokers.masters) if checks_users else None
        self.sign_in = SignIn(config.http.token, self._users, clock)
        http = config.http
        sessions = Sessions(self._session_secret, http.session_timeout, clock, http.sign_outs_file)
        console = Console(self.endpoints, self.collector, self.sign_in, sessions, clock, config)
        routes = [*routes_of(self.endpoints), *LiveApi(self.collector, config.http).routes, *console.routes]
        self.app = ConsoleApp(config.http, clock, routes, self.sign_in, sessions, console.problem)
        self._contexts: ReloadedContext | None = None
        front = None
        if config.http.tls:
            files = configured_certificate(config.tls)
            self._contexts = open_web_context(files, config.tls, setting="http.tls")
            front = TlsFront(self._contexts, config.tls.handshake_timeout / 1000, clock)
        self.listener = HttpListener(self.app.asgi, config.http, self.collector.close, front)

    @property
    def address(self) -> str:
        """Where it listens."""
        host = self._config.http.host
        return f"[{host}]:{self.listener.port}" if ":" in host else f"{host}:{self.listener.port}"

    @property
    def _session_secret(self) -> str:
        token = self._config.http.token
        return token if self._users is None else f"{token} {self._users.session_secret}"

    def _authorize(self, kept: Kept) -> None:
        """Check that the user of a job may still do it."""
        if self._users is not None and kept.job.user:
            self._users.authorize(kept.job.user, kept.source, job_accesses(kept.job.order))

    def statistics(self) -> dict[str, int]:
        """How much of each limit is used, and what was refused."""
        in_progress, rates = self.app.in_progress, self.app.rates
        return {
            "connections": self.listener.connections,
            "requests": in_progress.count,
            "streams": self.collector.streams,
            "held_bytes": in_progress.held_bytes,
            "timed_out": in_progress.timed_out,
            "rate_clients": len(rates),
            "refused_by_rate": rates.refused,
            "duration_ms": round(self.app.access_log.duration_ms),
            **self._far.process.statistics(),
            **{f"sign_ins_{reason}": count for reason, count in self.sign_in.refused.items()},
            **(self._users.statistics() if self._users is not None else NO_COPY),
            **self.jobs.statistics(),
            "alerts": len(self.alerts.engine),
            "alerts_suppressed": self.alerts.engine.suppressed,
            "alerts_unsent": self.alerts.webhooks.unsent,
            **{f"alert_messages_{result}": count for result, count in self.alerts.webhooks.results.items()},
            **{f"alerts_firing_{rule}": count for rule, count in self.alerts.firing_by_rule().items()},
            **{f"answers_{status}": count for status, count in self.app.access_log.answers.items()},
        }

    async def start(self) -> None:
        """Accept requests. Brokers are connected when they are needed."""
        for client in (self.brokers, self._reader, self._producer):
            await client.start()
        if self._contexts is not None:
            self._contexts.watch(self._config.tls.reload_every / 1000)
        await self.listener.start()
        if self._users is not None:
            self._users.start()
        await self.jobs.start()
        self.alerts.start()
        self.collector.watch()

    async def stop(self) -> None:
        """Stop accepting, end event streams, finish the requests in flight, and disconnect from the brokers."""
        await self.listener.stop()
        if self._contexts is not None:
            await self._contexts.close()
        await self.jobs.close()
        await self.alerts.close()
        if self._users is not None:
            await self._users.close()
        await self._far.process.close()
        for client in (self._producer, self._reader, self.brokers):
            await client.close()

    def _endpoints(self, density: DensityApi, clock: Clock) -> list[Endpoint]:
        """The route table."""
        brokers, http = self.brokers, self._config.http
        scheduler, history = self._scheduler, TimerHistoryApi(brokers)
        forecast, lateness = ForecastApi(brokers, self._far, clock), LatenessApi(brokers)
        rows = [
            *HealthApi(brokers).endpoints,
            *self.metrics.endpoints,
            *TimerApi(brokers, scheduler).endpoints,
            *history.endpoints,
            *TimerBatchApi(brokers, scheduler, http).endpoints,
            *self._timers.endpoints,
            *JobApi(self.jobs, self._works, http, clock).endpoints,
            *density.endpoints,
            *lateness.endpoints,
            *ThroughputApi(brokers).endpoints,
            *forecast.endpoints,
            *WhatIfApi(brokers, forecast, lateness, http).endpoints,
            *TopicApi(brokers, http).endpoints,
            *MessageTraceApi(brokers, history).endpoints,
            *TopicMessageApi(brokers, self._reader, self._producer, http).endpoints,
            *GroupApi(brokers).endpoints,
            *DeadLetterApi(brokers, self._reader, self._producer, http).endpoints,
            *DeadLetterExportApi(self._reader).endpoints,
            *self._cluster.endpoints,
            *PipelineApi(brokers, self._far).endpoints,
            *AlertApi(self.alerts, self._cluster.collect, clock).endpoints,
        ]
        return [replace(row, visible=with_visible(row)) for row in with_rules([*rows, *OpenApi(rows).endpoints])]


def run_console(config: Config, ready: Callable[[str], None]) -> int:
    """Run a console until SIGTERM or SIGINT. `ready` receives its address once it accepts connections."""

    async def run() -> None:
        process = ConsoleProcess(config, SystemClock())
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        try:
            await process.start()
            ready(f"console {process.address}")
            await stop.wait()
        finally:
            await process.stop()

    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return 0
