"""The broker process: its socket, threads and periodic tasks, from start to clean stop."""

import asyncio
import contextlib
import os
import random
import signal
import socket
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import structlog
import uvloop

from latermq.addresses import own_address
from latermq.broker.broker import Broker
from latermq.broker.tables.table_saver import run_all
from latermq.client.session.credentials import own_credentials
from latermq.clock import Clock, SystemClock
from latermq.config import DEFAULT_METRICS_PORT, Config
from latermq.errors import LaterMQError, StoreError
from latermq.pipeline_secret import is_open_to_others, load_or_create_secret, secret_path
from latermq.redaction import redacted
from latermq.server.broker.access_control import AccessControl
from latermq.server.broker.clock_fifo import open_clock
from latermq.server.broker.cluster_routes import ClusterRoutes
from latermq.server.broker.composition import (
    admin_requests,
    broker_metrics,
    broker_service,
    pipeline_requests,
    restored_backup,
    timer_requests,
    window_loader,
    window_requests,
)
from latermq.server.broker.config_file_errors import log_config_file_errors
from latermq.server.broker.far_records import FarRecords
from latermq.server.broker.flusher import Flusher, Preparer
from latermq.server.broker.pipeline_folder import DriverTokens
from latermq.server.broker.pop_driver import PopDriver
from latermq.server.broker.registrar import Registrar
from latermq.server.broker.retainer import Retainer
from latermq.server.broker.save_rounds import TableSaver
from latermq.server.broker.timer_driver import TimerDriver
from latermq.server.broker.transaction_driver import TransactionDriver
from latermq.server.collector import tune_garbage_collector
from latermq.server.handlers.transactions import check_sender
from latermq.server.metrics_server import MetricsServer
from latermq.server.private_files import close_to_others
from latermq.server.remoting.listener import Listener
from latermq.server.remoting.open_files import max_map_count, raise_file_limit, within_limits
from latermq.server.remoting.sliced_requests import SlicedRequests
from latermq.server.server_tls import ServerTls
from latermq.store.files.disk import FileDisk
from latermq.tls.client import own_tls

_ANY_HOST = ("", "0.0.0.0", "::")
_POLL_EXPIRY_S = 0.5
_INDEX_EVERY_S = 0.2
_WINDOWS_EVERY_S = 0.1
_REBUILT_SHOWN = 20
_log = structlog.get_logger(__name__)


class BrokerProcess:
    """A broker with its socket, threads and disk. Call `start` and `stop` once each. `ended` signals when to stop."""

    def __init__(self, config: Config, clock: Clock, data: Path) -> None:
        wanted_open_queues = config.store.max_open_queues
        file_limit = raise_file_limit()
        self._config = config = within_limits(config, file_limit)
        self._clock = clock
        self._data = data
        server = config.server
        host = config.broker.advertise_host or server.host
        self._port = server.port or _free_port(server.host)
        self.advertised = own_address() if host in _ANY_HOST else socket.gethostbyname(host)
        self._disk = FileDisk(data, time.sleep)
        close_to_others(data)
        loop = asyncio.get_running_loop()
        self._preparer = Preparer()
        self.broker = broker = Broker(
            config,
            self._disk,
            clock,
            host=self.advertised,
            port=self._port,
            new_store_id=uuid.uuid4().hex,
            client_clock=SystemClock(),
            random_fraction=random.random,
            defers_topic_saves=True,
            call_soon=loop.call_soon,
            call_later=loop.call_later,
            on_low_space=self._preparer.request,
        )
        self._log_recovery()
        self._log_queues(wanted_open_queues, file_limit)
        # The result is None after a request to stop, and the error if the broker cannot continue.
        self.ended: asyncio.Future[BaseException | None] = loop.create_future()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-store")
        self._access = AccessControl(config, self._disk, data, SystemClock())
        self._open_drivers()
        # A real cycle: the service serves requests in slices, and each slice is followed by the service's own work.
        self._sliced = SlicedRequests(config.timer.max_lookup, loop.call_soon, lambda: self.service.on_turn_end())
        self.service = broker_service(
            broker,
            request_flush=self._flusher.request,
            on_topics_changed=self._topics_changed,
            on_scheduled=self._driver.run_soon,
            plan_checks=self._transaction_driver.plan,
            between_requests=self._driver.run_if_late,
            save_topics=self._table_saver.save_topics,
            on_pops_settled=lambda: self._pop_driver.reschedule(),
            sliced=self._sliced,
            later=loop.call_soon,
        )
        self._pop_driver = PopDriver(
            broker.pop_expiry,
            broker.pop_operations,
            broker.waiting_pops,
            broker.waiting,
            self.service.pop_replies,
            broker.pop_clock,
            broker.client_clock,
            self._table_saver.save_topics,
            on_failed=self.end,
        )
        # Sockets use real time, even when deliveries use a simulated clock.
        self.listener = Listener(self.service, server, SystemClock(), self._access.decode, self._tls.port())
        self._admin = admin_requests(
            self.broker,
            address=self.address,
            program_version=version("latermq"),
            run_off_loop=self._run_off_loop,
            announce=self._registrar.announce,
            retain=self._retainer.run,
            find_brokers=self._cluster_routes.find,
            sliced=self._sliced,
        )
        flush_queue = self.service.flush_queue
        self._pending = timer_requests(self.broker, flush_queue, self._sliced, self._far_records.fetch)
        pipeline = pipeline_requests(
            self.broker,
            flush_queue,
            run_off_loop=self._run_off_loop,
            timeline=redacted(self._timeline_uri),
            tokens=DriverTokens(self._timeline_uri, self.broker.store.store_id),
            instance=uuid.uuid4().hex,
            secret=self._pipeline_secret(),
        )
        self._windows = window_requests(self.broker, self._loader)
        for subject in (self._admin, self._pending, pipeline, self._windows):
            self.service.table.add(subject.endpoints)
        self._access.install(self.service, self._admin.saves)
        self._metrics = MetricsServer(broker_metrics(self.broker, self._server_statistics), self._tls.metrics_front())
        self._timers: list[asyncio.TimerHandle | None] = []
        self._is_checkpointing = False

    def _open_drivers(self) -> None:
        """Build the periodic and background work. `start` starts it."""
        broker, config = self.broker, self._config
        self._tls = ServerTls(config, self._data, SystemClock())
        self._flusher = Flusher(broker.store.flush, every_s=config.store.flush_every / 1000)
        self._driver = TimerDriver(broker.timers, broker.waiting, config.timer.build_every, on_failed=self.end)
        # Another cycle: after a run, the service wakes waiting pulls and registers new topics.
        self._transaction_driver = TransactionDriver(
            broker.transaction_checks,
            check_sender(config.broker.name),
            on_turn_end=lambda: self.service.on_turn_end(),
            on_failed=self.end,
        )
        self._far_records = FarRecords(self._timeline_uri, broker.store.store_id)
        self._loader = window_loader(
            broker, root_uri=self._timeline_uri, address=self.address, on_loaded=self._driver.run_now
        )
        self._table_saver = TableSaver(broker.tables, broker.offsets, self._run_off_loop)
        self._retainer = Retainer(
            broker.retention,
            broker.far,
            broker.timers.guard,
            self._disk.remove,
            self._submit,
            release=broker.pop_expiry.release_log,
        )
        addresses = config.server.namesrv or f"{config.server.host}:{config.server.namesrv_port}"
        name_servers = [name for name in addresses.replace(",", ";").split(";") if name]
        tls, credentials = own_tls(config.tls), own_credentials(config.access, self._data)
        self._registrar = Registrar(broker.tables, config.broker, name_servers, self.address, tls, credentials)
        self._cluster_routes = ClusterRoutes(name_servers, config.broker.name, tls, credentials)

    @property
    def address(self) -> str:
        """The host and port that clients connect to."""
        return f"{self.advertised}:{self._port}"

    def _server_statistics(self) -> dict[str, int]:
        services = (
            self.listener, self.service, self._admin, self._pending, self._windows, self._metrics, self._cluster_routes,
            self._access, self._tls,
        )  # fmt: skip
        return {name: count for service in services for name, count in service.statistics().items()}

    def _log_recovery(self) -> None:
        broker, recovery = self.broker, self.broker.store.recovery
        _log.info(
            "store opened",
            store=broker.store.store_id,
            after="a crash" if recovery.crashed else "a clean stop",
            log_end=recovery.log_end,
            records_read=recovery.records,
            offsets_brought_back=broker.clamped_offsets,
        )
        log_config_file_errors(broker.troubles)
        if recovery.rebuilt:
            shown, count = recovery.rebuilt[:_REBUILT_SHOWN], len(recovery.rebuilt)
            _log.warning("lost files rebuilt from the log", count=count, of=shown)
        if broker.adopted_topics:
            _log.warning("topics without configuration restored", topics=broker.adopted_topics)
        takeover = broker.pop_takeover
        if takeover.taken_over or takeover.dropped:
            _log.info(
                "popped messages of RocketMQ's broker taken over", messages=takeover.taken_over, gone=takeover.dropped
            )
        if takeover.trouble:
            _log.warning("popped messages of RocketMQ's broker not read completely", reason=takeover.trouble)
        unreadable_records = broker.replay.unreadable_records
        if unreadable_records.count:
            _log.warning("timer records skipped", records=unreadable_records.count, first=unreadable_records.first)

    def _log_queues(self, wanted_open: int, file_limit: int) -> None:
        """Log the number of queues, and warn about queue settings that this process cannot honour or has exceeded."""
        store, counts = self._config.store, self.broker.store.statistics()
        _log.info("queues", queues=counts["queues"], max_queues=store.max_queues, max_open=store.max_open_queues)
        if store.max_open_queues < min(wanted_open, counts["queues"]):
            _log.warning(
                "fewer queue files stay open than configured",
                max_open_queues=store.max_open_queues,
                configured=wanted_open,
                reason=f"the limit of open files is {file_limit}, the limit of maps is {max_map_count()}",
                hint="Nothing is lost, busy queues beyond it cost more time: raise the limits (ulimit -n, "
                "vm.max_map_count) or lower store.max_open_queues",
            )
        if counts["queues"] > store.max_queues:
            _log.warning(
                "more queues exist than configured",
                queues=counts["queues"],
                max_queues=store.max_queues,
                hint="They stay usable, but no queue can be added: raise store.max_queues or delete unused topics",
            )

    @property
    def _timeline_uri(self) -> str:
        """The timeline's folder as a URI or an absolute path, so that other processes on this machine can use it."""
        uri = self._config.pipeline.timeline or str(self._data / "pipeline")
        return uri if "://" in uri else str(Path(uri).absolute())

    def _pipeline_secret(self) -> bytes:
        pipeline = self._config.pipeline
        path = secret_path(pipeline.secret_file, pipeline.timeline, self._data)
        try:
            secret = load_or_create_secret(path)
        except LaterMQError as error:  # the broker still serves clients without a driver
            _log.error("requests of drivers are rejected", reason=error.message, hint=error.hint)
            return b""
        if is_open_to_others(path):
            hint = "Run chmod 600 on it: anyone who reads it can stop the delivery of far timers"
            _log.warning("other users can read the pipeline's secret", path=str(path), hint=hint)
        return secret

    async def start(self) -> None:
        """Accept connections and register with the name servers."""
        config = self._config
        self._access.start()
        self._flusher.start(on_flushed=self.service.flush_queue.on_flushed, on_failed=self.end)
        self._preparer.start(self.broker.store.prepare_ahead)
        self.broker.gate.check_disk()
        await restored_backup(self.broker, self._timeline_uri).complete()
        await self._metrics.start_for("metrics.port", config.server.host, config.metrics.port, DEFAULT_METRICS_PORT)
        self._driver.start()
        self._transaction_driver.start()
        self._pop_driver.start()
        self._tls.watch()
        await self.listener.start(config.server.host, self._port)
        await self._registrar.register()
        self._every(_INDEX_EVERY_S, self.broker.store.pending_keys.put)
        self._every(_POLL_EXPIRY_S, lambda: self.broker.waiting.expire(time.monotonic()))
        self._every(_WINDOWS_EVERY_S, self._loader.tick)
        self._every(1.0, self._housekeeping)
        self._every(1.0, self._run_cut)
        self._every(config.broker.register_every / 1000, self._registrar.announce)
        self._every(config.store.checkpoint_every / 1000, self._checkpoint)
        self._every(config.broker.offset_save_every / 1000, self._table_saver.save_all)
        self._every(config.store.retention_every / 1000, self._retainer.run)
        self._checkpoint()

    def _every(self, interval_s: float, action: Callable[[], None]) -> None:
        """Run an action at a fixed interval. A failure is logged, and the next run still takes place."""
        loop = asyncio.get_running_loop()
        slot = len(self._timers)
        self._timers.append(None)
        failure = ""

        def run() -> None:
            nonlocal failure
            self._timers[slot] = loop.call_later(interval_s, run)
            try:
                action()
                failure = ""
            except LaterMQError as error:
                if error.remark != failure:
                    failure = error.remark
                    _log.error("maintenance failed", action=getattr(action, "__name__", "?"), reason=failure)

        self._timers[slot] = loop.call_later(interval_s, run)

    def _housekeeping(self) -> None:
        self.broker.runtime_info.sample()
        self._admin.sample()
        self._access.mend(self._run_off_loop)
        self.broker.gate.check_disk()
        self._expire_clients()
        topics, groups = self.broker.unused_names.remove()
        if topics or groups:
            _log.info("unused topics and groups removed", topics=topics, groups=groups)
            self.service.on_turn_end()  # registers the change with the name servers and saves it
        if self.broker.store.bytes_since_checkpoint >= self._config.store.checkpoint_after:
            self._checkpoint()

    def _expire_clients(self) -> None:
        """Remove clients that sent no heartbeat, and notify the members of their groups."""
        broker = self.broker
        broker.locks.expire()
        for group, topic in broker.pulled_queues.forget_old():
            broker.waiting_pops.mark_group(group, topic)
        broker.waiting_pops.wake()
        oldest_s = broker.client_clock.monotonic_s() - self._config.broker.client_timeout / 1000
        self.service.group_changes.notify(broker.members.expire(oldest_s) | broker.reported_clients.expire())

    def _run_cut(self) -> None:
        if self.broker.timers.guard.is_holding:  # after a clock jump, wait until the guard accepts the time
            return
        far = self.broker.far
        kept_before = far.keeps_far_timers
        far.run()
        if far.keeps_far_timers == kept_before:
            return
        lag_s = round(far.lag_ms(self._clock.now_ms()) / 1000, 1)
        if far.keeps_far_timers:
            _log.warning("Spark's ingest lags: new timers of the next two days stay in the broker", lag_s=lag_s)
        else:
            _log.info("Spark's ingest has caught up: new far timers go to Spark again", lag_s=lag_s)

    def _topics_changed(self) -> None:
        """Register and save at once: clients must find a new topic, and an auto-created one must survive a crash."""
        self._registrar.announce()
        self._table_saver.save()

    def _checkpoint(self) -> None:
        if self._is_checkpointing or not self.broker.store.bytes_since_checkpoint:
            return
        plan = self.broker.store.plan_checkpoint()
        self._is_checkpointing = True

        def saved(_: LaterMQError | None) -> None:
            self._is_checkpointing = False

        self._run_off_loop([lambda: self.broker.store.save(plan)], saved)

    def _submit(self, work: Callable[[], None]) -> None:
        """Run blocking work off the loop, in order of submission."""
        self._run_off_loop([work], lambda error: None)

    def _run_off_loop(self, works: list[Callable[[], None]], when_done: Callable[[LaterMQError | None], None]) -> None:
        """Run several pieces of blocking work in order. `when_done` runs on the loop with None or the error."""

        def done(error: BaseException | None) -> None:
            when_done(error if error is None or isinstance(error, LaterMQError) else LaterMQError("store failed"))
            if isinstance(error, StoreError):
                _log.error(
                    "maintenance failed", reason=error.remark
                )  # for example a full disk; the next run may succeed
            elif error is not None:
                self.end(error)

        loop = asyncio.get_running_loop()
        future = self._worker.submit(run_all, works)
        future.add_done_callback(lambda finished: loop.call_soon_threadsafe(done, finished.exception()))

    def on_clock_set(self) -> None:
        """React to a clock that was set: deliver all timers that are now due."""
        with contextlib.suppress(StoreError):  # the periodic cut retries within a second and logs a failure
            self._run_cut()
        self._driver.run_now()
        self._transaction_driver.plan()
        self._pop_driver.run_now()

    def end(self, error: BaseException | None = None) -> None:
        """Complete `ended`."""
        if not self.ended.done():
            self.ended.set_result(error)

    async def stop(self) -> None:
        """Refuse new work, answer requests in progress, sync everything and unregister."""
        self.broker.gate.close("the broker is stopping")
        for timer in self._timers:
            if timer is not None:
                timer.cancel()
        await self._cluster_routes.close()
        await self._registrar.close()
        self._driver.stop()
        self._transaction_driver.stop()
        self._pop_driver.stop()
        self._sliced.stop()
        self._table_saver.stop()
        self._retainer.stop()
        await self._loader.stop()
        self._far_records.stop()
        self.broker.waiting.finish()
        self.broker.waiting_pops.finish()
        self.service.pop_replies.settle()
        self._preparer.stop()
        self._flusher.stop()
        self.service.flush_queue.on_flushed(self.broker.store.flush())
        self._access.finish()
        await self.listener.close()
        self._access.stop()
        await self._tls.close()
        await self._metrics.close()
        self._worker.shutdown()
        self.broker.close()


def _free_port(host: str) -> int:
    """A free port. Message ids contain the port, so it must be known before the store is opened."""
    with socket.create_server((host, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def run_broker(config: Config, data: Path, ready: Callable[[str], None]) -> int:
    """Run a broker until SIGTERM or SIGINT. `ready` receives its address once clients can use it."""

    async def run() -> int:
        clock, fifo = open_clock(config.clock.source)
        process = BrokerProcess(config, clock, data)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, process.end)
        await process.start()
        tune_garbage_collector()
        if fifo is not None:
            fifo.start(process.on_clock_set)
        ready(f"broker {process.address}")
        error = await process.ended
        if error is not None:
            # The state on disk is unknown: exit at once and let recovery determine it.
            _log.critical("store failed", reason=repr(error))
            os._exit(1)
        if fifo is not None:
            fifo.stop()
        await process.stop()
        return 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())
