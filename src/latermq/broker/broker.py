"""The broker: builds its parts, which use one store and no socket, and closes them."""

from collections.abc import Callable
from functools import partial

from latermq.broker.admin.group_admin import GroupAdmin
from latermq.broker.admin.message_admin import MessageAdmin
from latermq.broker.admin.runtime_info import RuntimeInfo
from latermq.broker.admin.topic_admin import TopicAdmin
from latermq.broker.messages.assignments import Assignments
from latermq.broker.messages.limits import MessageLimits
from latermq.broker.messages.long_polling import WaitingPulls
from latermq.broker.messages.progress import ConsumerProgress
from latermq.broker.messages.reader import MessageReader
from latermq.broker.messages.retries import Retries
from latermq.broker.messages.write_gate import WriteGate
from latermq.broker.messages.writer import MessageWriter
from latermq.broker.metrics.dead_letter_counts import DeadLetterCounts
from latermq.broker.metrics.group_lags import GroupLags
from latermq.broker.metrics.topic_traffic import TopicTraffic
from latermq.broker.metrics.traffic import Traffic
from latermq.broker.notifications import Notices
from latermq.broker.pop.acknowledgements import Acknowledgements
from latermq.broker.pop.expiry import PopExpiry
from latermq.broker.pop.pop_clock import PopClock
from latermq.broker.pop.pops import Pops
from latermq.broker.pop.positions import PopPositions
from latermq.broker.pop.pulled_queues import PulledQueues
from latermq.broker.pop.reported_clients import ReportedClients
from latermq.broker.pop.sent_answers import SentAnswers
from latermq.broker.pop.takeover import PopTakeover
from latermq.broker.pop.waiting_pops import WaitingPops
from latermq.broker.tables.adopted_topics import adopt_queues, adopt_timer_topics
from latermq.broker.tables.config_files import TOPICS_PATH
from latermq.broker.tables.known_ends import known_ends
from latermq.broker.tables.table_loader import open_tables
from latermq.broker.tables.table_saver import Tables
from latermq.broker.tables.unused_names import UnusedNames
from latermq.broker.tables.writable_topics import WritableTopics, reject_unsaved
from latermq.broker.timers.bulk_changes import BulkChanges
from latermq.broker.timers.destinations import Destinations
from latermq.broker.timers.far_timers import FarTimers
from latermq.broker.timers.generated_keys import GeneratedKeys
from latermq.broker.timers.ingest_mark import IngestMark
from latermq.broker.timers.known_names import KnownNames
from latermq.broker.timers.lost_entries import LostEntries, TimelineTail
from latermq.broker.timers.pending import PendingTimers
from latermq.broker.timers.row_schedule import RowSchedule
from latermq.broker.timers.start_replay import StartReplay
from latermq.broker.timers.takeover import adopt_delay_offsets, adopt_settled_timers, count_far_timers
from latermq.broker.timers.window_skips import WindowSkips
from latermq.broker.transactions.checks import TransactionChecks
from latermq.broker.transactions.decisions import Decisions
from latermq.broker.transactions.half_writer import HalfWriter
from latermq.clock import Clock
from latermq.config import Config
from latermq.group.filters import Filters
from latermq.group.locks import QueueLocks
from latermq.group.members import Members
from latermq.group.pop.operations import Limits, PopOperations
from latermq.group.pop.pop_journal import PopJournal
from latermq.group.pop.snapshot import PopSnapshot
from latermq.group.pop.table import InFlightTable
from latermq.group.transactions.half_topic import HalfTopic, TransactionState
from latermq.group.transactions.open_halves import CheckSchedule, OpenHalves
from latermq.message.ids import pack_host
from latermq.message.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, TRANSACTION_GROUP
from latermq.message.stamp import Stamp
from latermq.message.timer_code import timer_code_of
from latermq.model.transaction import TransactionTallies
from latermq.store.files.disk import Disk
from latermq.store.files.set_aside import Trouble
from latermq.store.message_store import MessageStore
from latermq.store.retention import Retention
from latermq.timer.admission import Admission
from latermq.timer.delivery.clock_guard import ClockGuard
from latermq.timer.engine.choice import open_engine
from latermq.timer.far.far_names import FarNames
from latermq.timer.intake.renewal import load_renewal_window_ms
from latermq.timer.levels import LevelTable
from latermq.timer.service import TimerService


class Broker:
    """The parts of one broker, without logic of its own. Its users receive only the parts that they need."""

    def __init__(
        self,
        config: Config,
        disk: Disk,
        clock: Clock,
        *,
        host: str,
        port: int,
        new_store_id: str,
        client_clock: Clock | None = None,
        random_fraction: Callable[[], float] = lambda: 0.5,
        defers_topic_saves: bool = False,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
        on_low_space: Callable[[], None] = lambda: None,
    ) -> None:
        """`clock` is the time of messages; clients' heartbeats and locks may use another.

        `random_fraction` returns numbers from 0 to 1, which select the timers of a full second to refuse. The first
        message of a new topic saves the tables at once. With `defers_topic_saves` it raises UnsavedTopic instead, and
        the caller tries again after saving the tables off the event loop.

        `call_soon` and `call_later` are those of the event loop: they divide long work into slices. Without them, it
        is done at once. `on_low_space` requests disk space and memory ahead of the log writer.
        """
        self.config = config
        self.clock = clock
        self._disk = disk
        self.store_host = pack_host(host, port)
        self.in_flight = InFlightTable(config.pop.remembered_handles)
        self.pop_snapshot = PopSnapshot(disk, self.in_flight, max_pinned_bytes=int(config.pop.kept_log))
        levels = LevelTable(config.timer.levels)
        self.store, transaction_state = self._open_store(levels, new_store_id, on_low_space)
        settings = config.broker
        self.client_clock = client_clock or clock
        self.troubles: list[Trouble] = []  # config files that could not be parsed
        self.topics, self.groups, self.offsets, self.modes = open_tables(
            disk, settings, clock, self.client_clock, self.troubles
        )
        self._open_for_clients(call_soon, call_later)
        self.retention = Retention(self.store, config.store, clock)
        self.traffic = Traffic()
        self.timer_traffic = Traffic()  # timers into the engine and out of it, with renewals
        self.reader = MessageReader(self.store.reader, self.topics, self.groups, settings, self.traffic)
        self.topic_traffic = TopicTraffic(self.store.queues, clock.monotonic_s())
        damaged_paths = {trouble.path for trouble in self.troubles}
        self.ingest = IngestMark(disk)
        self.far_names = FarNames(disk)
        if not self.store.recovery.had_checkpoint:
            self.store.queues.resume_from(
                known_ends(disk, self.topics, self.offsets, self.ingest, self.far_names, self.troubles)
            )
            adopt_delay_offsets(disk, self.store, self.troubles)
        self._open_pop_state()
        self.progress = ConsumerProgress(
            self.store.reader, self.topics, self.groups, self.offsets, settings, self.pop_positions
        )
        self.clamped_offsets = self.progress.clamp()
        self.adopted_topics = adopt_queues(self.topics, self.store.queues, self.troubles, settings.default_queues)
        self.topics.is_lost = any(trouble.is_lost for trouble in self.troubles if trouble.path == TOPICS_PATH)
        keys = GeneratedKeys(self.store.store_id, self.store.queues)
        self.admission = Admission(levels, config.timer.max_delay, keys.next_key)
        self.stamp = Stamp(settings.cluster)
        self._must_recount_timers = False
        self._open_waiting(levels)
        self.tables = Tables(
            disk,
            clock,
            self.store,
            self.topics,
            self.groups,
            self.offsets,
            self.modes,
            self.timers.level_marks,
            damaged_paths=damaged_paths,
        )
        self.tables.encode_offsets(self.offsets.stale_blocks)  # all blocks, because no client is connected yet
        self.tables.load_unused()
        self._open_for_senders(random_fraction, reject_unsaved if defers_topic_saves else self.tables.save)
        self._open_transactions(transaction_state)
        self._open_for_pops(random_fraction)
        self._open_for_operators()
        if self.topics.is_lost:
            self.adopted_topics += adopt_timer_topics(self.topics, self.timers.pending)
        # If this start resumed from a checkpoint and its engine, the next start can do so too, and this one need not
        # wait for the disk. The old checkpoint does not apply to an engine that is filled again.
        if self.store.recovery.resumed is None or not self.has_whole_engine:
            self.store.save(self.store.plan_checkpoint())

    def _open_store(
        self, levels: LevelTable, new_store_id: str, on_low_space: Callable[[], None]
    ) -> tuple[MessageStore, TransactionState]:
        config, precision_ms = self.config, int(self.config.timer.import_precision)
        settings = config.transaction
        # As in RocketMQ, an open transaction keeps the log no longer than other messages.
        timeout_ms = min(settings.timeout, config.store.retention)
        schedule = CheckSchedule(settings.check_after, settings.check_every, settings.checks, timeout_ms)
        self.open_halves = OpenHalves(schedule, settings.max_open)
        transactions = TransactionState(self.open_halves)
        store = MessageStore(
            self._disk,
            config.store,
            self.clock,
            store_host=self.store_host,
            new_store_id=new_store_id,
            on_low_space=on_low_space,
            waiting_codes={
                SCHEDULE_TOPIC: levels.due_ms,
                TIMER_TOPIC: lambda properties, store_timestamp_ms: timer_code_of(properties, precision_ms),
            },
            participants=[transactions, self.pop_snapshot],
        )
        return store, transactions

    def _open_for_clients(
        self,
        call_soon: Callable[[Callable[[], None]], object] | None,
        call_later: Callable[[float, Callable[[], None]], object] | None,
    ) -> None:
        """The state of connected clients; each part has a limit."""
        settings = self.config.broker
        self.members = Members(settings)
        self.notices = Notices(self.members, settings.max_held_notices, call_later)
        self.assignments = Assignments(self.topics, self.groups, self.members, self.modes, settings.name)
        self.filters = Filters(settings)
        self.locks = QueueLocks(self.client_clock, settings.queue_lock_timeout, settings.max_queue_locks)
        pop = self.config.pop
        self.waiting_pops = WaitingPops(pop.max_waiting, pop.max_waiting_per_queue, call_soon)
        self.waiting = WaitingPulls(
            settings.max_waiting_pulls,
            settings.max_waiting_pulls_per_connection,
            settings.max_waiting_filters,
            settings.pull_work,
            call_soon,
            self.waiting_pops,
        )

    def _open_pop_state(self) -> None:
        """The messages in flight, as the last journal record left them."""
        pop = self.config.pop
        self.pop_operations = PopOperations(
            self.in_flight,
            Limits(pop.max_in_flight, pop.max_in_flight_per_queue, pop.max_queues),
            lease_ms=pop.lease,
            max_hold_ms=pop.max_hold,
        )
        self.pop_takeover = PopTakeover(
            self._disk,
            self.store,
            self.topics,
            self.groups,
            self.offsets,
            self.in_flight,
            self.pop_snapshot,
            self.clock.now_ms(),
        )
        self.pop_journal = PopJournal(self.store, self.pop_operations, self.pop_snapshot, born_host=self.store_host)
        self.pop_clock = PopClock(
            self.clock, self.pop_operations.follow_clock, self.in_flight.boot, self.in_flight.clock_offset_ms
        )
        self.pop_operations.begin(self.pop_clock.now_ms())
        self.pop_positions = PopPositions(self.pop_operations, self.pop_journal, self.offsets, self.clock)
        self.retention.add_guard(self.pop_journal.needed_from)

    def _open_for_pops(self, random_fraction: Callable[[], float]) -> None:
        """The parts of POP consumption."""
        operations, positions, store = self.pop_operations, self.pop_positions, self.store
        self.pulled_queues = PulledQueues(self.in_flight, self.topics, self.members, self.client_clock)
        self.sent_answers = SentAnswers(operations, self.pop_clock, self.client_clock)
        self.reported_clients = ReportedClients(
            operations, positions, self.members, self.pop_clock, self.client_clock, self.config.pop.max_reported_topics
        )
        self.pops = Pops(
            operations,
            positions,
            self.reader,
            store.reader,
            self.progress,
            self.topics,
            self.groups,
            self.gate,
            self.pop_clock,
            self.config.broker,
            random_fraction=random_fraction,
            is_pulled=self.pulled_queues.is_pulled,
        )
        self.pop_expiry = PopExpiry(
            store,
            operations,
            self.pop_journal,
            positions,
            self.pops,
            self.groups,
            self.writable_topics,
            self.waiting,
            self.waiting_pops,
            self.timers.guard,
            self.pop_clock,
            self.retention.expires_until,
            self.pulled_queues.is_topic_pulled,
        )
        self.acknowledgements = Acknowledgements(
            operations, positions, self.pop_expiry, self.waiting_pops, self.topics, store.queues, self.pop_clock
        )

    def _open_for_senders(self, random_fraction: Callable[[], float], save_topics: Callable[[], None]) -> None:
        """The parts that store messages."""
        settings = self.config.broker
        self.gate = WriteGate(self.store, self.config.store)
        self.limits = MessageLimits(int(settings.max_message), self.store.writer.max_block_bytes)
        self.writable_topics = WritableTopics(self.topics, self.gate, save_topics)
        self.writer = MessageWriter(
            self.store.writer,
            self.writable_topics,
            self.limits,
            self.admission,
            self.timers,
            self.pending,
            self.waiting,
            self.traffic,
            self.clock,
            settings,
            self.stamp,
            store_host=self.store_host,
            random_fraction=random_fraction,
        )
        self.retries = Retries(self.store.reader, self.groups, self.locks, self.writable_topics, self.writer)
        self.row_schedule = RowSchedule(
            self.writer,
            self.writable_topics,
            self.store.queues,
            self.admission,
            self.timers,
            KnownNames(self.store.reader, self.far_names, self.timers.marks.all_wake_from_ms),
            self.clock,
            self.config,
            store_host=self.store_host,
            random_fraction=random_fraction,
        )

    def _open_transactions(self, state: TransactionState) -> None:
        """The parts for transactions."""
        store, clock, halves = self.store, self.clock, self.open_halves
        self.half_topic = HalfTopic(
            store,
            state,
            born_host=self.store_host,
            now_ms=clock.now_ms(),
            apache_offset=max(0, self.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0)),
        )
        self.retention.add_guard(self.half_topic.needed_from)
        self.transaction_tallies = TransactionTallies()
        self.half_writer = HalfWriter(store.writer, self.writable_topics, self.writer, halves, self.half_topic, clock)
        self.decisions = Decisions(
            store.reader,
            store.writer,
            self.writer,
            halves,
            self.half_topic,
            Destinations(self.topics, store.queues),
            self.gate,
            clock,
            self.transaction_tallies,
        )
        self.transaction_checks = TransactionChecks(
            store.reader,
            self.members,
            self.topics,
            halves,
            self.half_topic,
            self.gate,
            clock,
            self.transaction_tallies,
            trusted_now_ms=self.timers.guard.now_ms,
        )

    def _open_for_operators(self) -> None:
        """The parts that operators use, and the removal of unused names."""
        store, settings = self.store, self.config.broker
        self.topic_admin = TopicAdmin(
            self.topics,
            self.offsets,
            self.modes,
            self.tables,
            store,
            self.topic_traffic,
            self.clock,
            settings,
            self.pop_positions,
            self.waiting_pops,
        )
        self.group_admin = GroupAdmin(
            self.groups,
            self.members,
            self.offsets,
            self.modes,
            self.topics,
            store.reader,
            self.topic_traffic,
            self.clock,
            settings,
            self.pop_positions,
        )
        self.message_admin = MessageAdmin(self.reader, self.members, self.filters)
        self.group_lags = GroupLags(self.offsets, store.queues, self.pop_positions.delivered_offset)
        self.dead_letter_counts = DeadLetterCounts(self.topics, store.queues)
        self.runtime_info = RuntimeInfo(
            store,
            self.timers,
            self.topics,
            self.traffic,
            self.timer_traffic,
            self.topic_traffic,
            self.group_lags,
            self.dead_letter_counts,
            self.clock,
            self.statistics,
        )
        self.unused_names = UnusedNames(
            self.topics, self.groups, self.members, self.offsets, self.timers.pending, settings.keep_unused
        )
        # Used at start, and only if an old backup was restored; the lost entries are known then.
        self.lost_entries: Callable[[TimelineTail], LostEntries] = partial(
            LostEntries,
            store,
            self.timers,
            self.pending,
            self.far,
            self.ingest,
            self.replay,
            self.topics,
            self.clock,
            self.config,
            self.store_host,
        )

    def _open_waiting(self, levels: LevelTable) -> None:
        """The parts for waiting messages."""
        config, clock = self.config, self.clock
        self.timers = self._open_timers(levels)
        self.pending = PendingTimers(
            self.store.reader,
            self.store.writer,
            self.timers,
            self.far_names,
            self.admission,
            clock,
            self.stamp,
            store_host=self.store_host,
            max_steps=config.timer.max_lookup,
            on_changed=self.timers.note_timer,
        )
        self.bulk_changes = BulkChanges(
            self.store.reader,
            self.store.writer,
            self.pending,
            self.timers,
            self.far_names,
            clock,
            max_steps=config.timer.max_lookup,
        )
        self.replay = StartReplay(self.store, self.far_names, self.timers)
        self.replay.run()
        self.timers.start(clock.now_ms())
        if self._must_recount_timers:
            self.timers.recount()
        self.far = FarTimers(
            self._disk,
            self.store,
            self.timers,
            self.ingest,
            self.far_names,
            clock,
            config.pipeline,
            store_host=self.store_host,
            retention_ms=config.store.retention,
            expires_until=self.retention.expires_until,
        )
        self.window_skips = WindowSkips(self.store, self.timers, self.pending, self.far_names, self.far.notes)
        self.retention.add_guard(self.timers.needed_from)
        self.retention.add_guard(self.far.needed_from)

    def _open_timers(self, levels: LevelTable) -> TimerService:
        recovery, waiting = self.store.recovery, self.store.waiting
        if not recovery.had_checkpoint:
            self._must_recount_timers = adopt_settled_timers(self._disk, self.store, self.far_names)
        is_clean = not recovery.crashed
        engine, self.has_whole_engine = open_engine(
            self._disk, self.config.timer, waiting.recovered_marks, is_clean=is_clean
        )
        timers = TimerService(
            self.store,
            engine,
            levels,
            ClockGuard(self.clock, self.config.clock.max_step, self._disk),
            self.config.timer,
            self.stamp,
            renewal_window_ms=load_renewal_window_ms(self._disk, self.config.store.retention),
            marks=waiting.recovered_marks,
            is_engine_whole=self.has_whole_engine,
            place_of=Destinations(self.topics, self.store.queues).queue_for,
            on_delivered=self.waiting.mark_ready,
        )
        timers.pending.update(waiting.scheduled)
        timers.pending.subtract(waiting.finished)
        if not recovery.had_checkpoint:
            timers.pending.update(count_far_timers(self._disk, self.store, self.far_names))
        return timers

    def close(self) -> None:
        """Stop cleanly."""
        self.pop_positions.try_commit()
        # The checkpoint is first, so that the saved tables are never ahead of it.
        self.store.save(self.store.plan_checkpoint())
        self.tables.save()
        self.store.close()
        self.timers.engine.close()
        self.far_names.close()

    def statistics(self) -> dict[str, int]:
        """Sizes of all tables, queues and caches."""
        return {
            **self.store.statistics(),
            **self.groups.statistics(),
            **self.members.statistics(),
            **self.offsets.statistics(),
            **self.modes.statistics(),
            **self.locks.statistics(),
            **self.filters.statistics(),
            **self.reader.statistics(),
            **self.waiting.statistics(),
            **self.waiting_pops.statistics(),
            **{f"pop_{name}": count for name, count in self.pop_operations.statistics().items()},
            **{f"pop_{name}": count for name, count in self.pop_journal.statistics().items()},
            **self.pops.statistics(),
            **self.pop_expiry.statistics(),
            **self.acknowledgements.statistics(),
            **self.reported_clients.statistics(),
            **self.sent_answers.statistics(),
            **self.pulled_queues.statistics(),
            **self.notices.statistics(),
            **self.timers.statistics(),
            **self.open_halves.statistics(),
            **self.topic_traffic.statistics(),
            **self.group_lags.statistics(),
            "topics": len(self.topics.table.topics),
            "config_files_set_aside": sum(bool(trouble.kept_as) for trouble in self.troubles),
            **self.topics.auto_created.statistics(),
            **self.groups.auto_created.statistics(),
            "host_auto_created": max(self.topics.auto_created.max_per_host, self.groups.auto_created.max_per_host),
        }
