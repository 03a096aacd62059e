"""Composition of the process: what serves requests and metrics receives its parts of the broker here.

Only this module and the process know the whole broker.
"""

from collections.abc import Callable, Mapping

from latermq.broker.admin.runtime_info import Identity
from latermq.broker.broker import Broker
from latermq.broker.messages.record_pulls import RecordPulls
from latermq.broker.metrics.broker_metrics import BrokerMetrics
from latermq.message.ids import IPV4_HOST_BYTES
from latermq.server.broker.restored_backup import RestoredBackup
from latermq.server.handlers.ack_lane import AckLane
from latermq.server.handlers.acks import AckRequests
from latermq.server.handlers.admin.admin_requests import AdminRequests
from latermq.server.handlers.admin.client_requests import ClientRequests
from latermq.server.handlers.admin.context import AdminContext, Announce, TableSaves
from latermq.server.handlers.admin.group_requests import GroupRequests
from latermq.server.handlers.admin.message_requests import MessageRequests
from latermq.server.handlers.admin.topic_requests import TopicRequests
from latermq.server.handlers.assignments import AssignmentRequests, FindBrokers, find_none
from latermq.server.handlers.async_replies import RunOffLoop, WhenDone, run_inline
from latermq.server.handlers.broker_service import BrokerService
from latermq.server.handlers.consumers import ConsumerRequests
from latermq.server.handlers.flush_queue import FlushBarrier, FlushQueue
from latermq.server.handlers.messages import SendRequests
from latermq.server.handlers.notices import GroupChanges
from latermq.server.handlers.pipeline import PipelineRequests, Tokens
from latermq.server.handlers.pop_replies import PopReplies
from latermq.server.handlers.pops import PopRequests
from latermq.server.handlers.proxies import ProxyRequests
from latermq.server.handlers.pulls import PullRequests
from latermq.server.handlers.timers import FetchRecords, TimerRequests, fetch_nothing
from latermq.server.handlers.transactions import TransactionRequests
from latermq.server.handlers.windows import Loader, WindowRequests
from latermq.server.remoting.endpoints import Endpoint, RequestTable
from latermq.server.remoting.send_lane import SendLane
from latermq.server.remoting.sliced_requests import Later, SlicedRequests, call_now
from latermq.server.windows.window_loader import Builds, Files, WindowLoader


def broker_service(
    broker: Broker,
    *,
    request_flush: Callable[[], None] = lambda: None,
    on_topics_changed: Callable[[], None] = lambda: None,
    on_scheduled: Callable[[], None] = lambda: None,
    plan_checks: Callable[[], None] = lambda: None,
    between_requests: Callable[[], None] = lambda: None,
    save_topics: Callable[[WhenDone], None] | None = None,
    on_pops_settled: Callable[[], None] = lambda: None,
    sliced: SlicedRequests | None = None,
    later: Later = call_now,
) -> BrokerService:
    """The service with the requests of producers and consumers. Other requests are added to its table."""
    config = broker.config
    flush_queue = FlushQueue(
        broker.store.log,
        request_flush,
        is_sync=config.store.flush == "sync",
        max_waiting=config.broker.max_unflushed,
    )
    group_changes = GroupChanges(broker.groups, broker.notices, broker.waiting_pops)
    table = RequestTable(
        int(config.server.max_body), sliced if sliced is not None else SlicedRequests(config.timer.max_lookup)
    )
    sends = SendRequests(
        broker.writer, broker.half_writer, broker.retries, broker.reader, flush_queue, on_half=plan_checks
    )
    table.add([*sends.endpoints, *TransactionRequests(broker.decisions, flush_queue).endpoints])
    pulls = PullRequests(
        broker.reader,
        broker.waiting,
        broker.progress,
        broker.filters,
        broker.members,
        broker.groups,
        broker.topics,
        broker.topic_traffic,
        config.broker,
        broker.pulled_queues,
    )

    def note_producers(groups: list[str]) -> None:
        if broker.transaction_checks.note_connected(groups):
            plan_checks()

    consumers = ConsumerRequests(
        broker.progress,
        broker.members,
        broker.filters,
        broker.groups,
        broker.topics,
        broker.locks,
        broker.client_clock,
        config,
        group_changes.notify,
        broker.pulled_queues,
        note_producers,
    )
    table.add([*pulls.endpoints, *consumers.endpoints])
    pop_replies = PopReplies(
        broker.pop_positions.try_commit,
        flush_queue,
        broker.sent_answers,
        max_waiting=config.pop.max_unjournalled,
        later=later,
        on_settled=on_pops_settled,
    )
    acks = AckRequests(broker.acknowledgements, pop_replies, broker.config.pop.ack_batch)
    table.add([*acks.endpoints, *_pop_endpoints(broker, pop_replies, group_changes, note_producers)])
    return BrokerService(
        table,
        _send_lane(broker, table, between_requests) if not flush_queue.is_sync else None,
        AckLane(acks, broker.acknowledgements, pop_replies, table, between_requests),
        flush_queue,
        group_changes,
        broker.topics,
        broker.timers,
        broker.waiting,
        broker.members,
        broker.notices,
        broker.waiting_pops,
        pop_replies,
        max_waiting=config.broker.max_unflushed,
        on_topics_changed=on_topics_changed,
        on_scheduled=on_scheduled,
        between_requests=between_requests,
        save_topics=save_topics,
        later=later,
    )


def _pop_endpoints(
    broker: Broker, replies: PopReplies, group_changes: GroupChanges, on_producers: Callable[[list[str]], None]
) -> list[Endpoint]:
    """The requests of POP consumption, except those with handles."""
    pops = PopRequests(
        broker.pops,
        broker.waiting_pops,
        replies,
        broker.filters,
        broker.topic_traffic,
        broker.client_clock,
        broker.config,
    )
    proxies = ProxyRequests(broker.reported_clients, broker.sent_answers, replies, group_changes.notify, on_producers)
    return [*pops.endpoints, *proxies.endpoints]


def _send_lane(broker: Broker, table: RequestTable, between_runs: Callable[[], None]) -> SendLane | None:
    """The lane, unless the broker has an IPv6 address. With sync flush, replies are sent one by one instead."""
    if len(broker.store_host) != IPV4_HOST_BYTES:
        return None
    return SendLane(
        broker.writer,
        broker.writable_topics,
        broker.store.queues,
        broker.admission,
        broker.clock,
        table,
        between_runs,
    )


def admin_requests(
    broker: Broker,
    *,
    address: str,
    program_version: str,
    run_off_loop: RunOffLoop = run_inline,
    announce: Announce = lambda on_announced: on_announced(),
    retain: Callable[[], None] = lambda: None,
    find_brokers: FindBrokers = find_none,
    sliced: SlicedRequests,
) -> AdminRequests:
    """All administration requests."""
    config = broker.config
    identity = Identity(address, program_version, broker.clock.now_ms())
    saves = TableSaves(broker.tables, config.broker.max_unsaved, run_off_loop)
    context = AdminContext(broker.topics, config, identity, saves, announce)
    return AdminRequests(
        broker.runtime_info,
        broker.store.log,
        broker.clock,
        context,
        TopicRequests(context, broker.topic_admin, broker.group_admin, broker.reader, broker.members, broker.tables),
        GroupRequests(
            context, broker.group_admin, broker.groups, broker.offsets, broker.members, broker.notices, broker.tables
        ),
        MessageRequests(broker.reader, broker.message_admin),
        ClientRequests(broker.reader, broker.members, config),
        AssignmentRequests(broker.assignments, context, find_brokers),
        retain=retain,
        sliced=sliced,
    )


def timer_requests(
    broker: Broker, flush_barrier: FlushBarrier, sliced: SlicedRequests, fetch_records: FetchRecords = fetch_nothing
) -> TimerRequests:
    """The requests about pending timers."""
    return TimerRequests(
        broker.pending,
        broker.bulk_changes,
        broker.topics,
        broker.gate,
        broker.waiting,
        broker.clock,
        broker.config,
        flush_barrier,
        sliced,
        fetch_records,
    )


def pipeline_requests(
    broker: Broker,
    flush_barrier: FlushBarrier,
    *,
    run_off_loop: RunOffLoop = run_inline,
    timeline: str = "",
    tokens: Tokens | None = None,
    instance: str = "",
    secret: bytes = b"",
) -> PipelineRequests:
    """The requests of the pipeline."""
    # The other quarter of a frame holds the largest header and one record beyond the requested size.
    pulls = RecordPulls(broker.store.reader, broker.topics, max_bytes=broker.config.server.max_frame * 3 // 4)
    return PipelineRequests(
        broker.store,
        broker.far,
        broker.ingest,
        pulls,
        broker.row_schedule,
        broker.clock,
        broker.config.broker.name,
        flush_barrier,
        run_off_loop=run_off_loop,
        timeline=timeline,
        tokens=tokens,
        instance=instance,
        secret=secret,
    )


def window_requests(broker: Broker, loader: Loader) -> WindowRequests:
    """Operators' requests about windows."""
    return WindowRequests(broker.far, broker.clock, broker.config.broker.name, loader)


def broker_metrics(broker: Broker, connections: Callable[[], Mapping[str, int]] = dict) -> BrokerMetrics:
    """The metrics of a broker and of its connections."""
    return BrokerMetrics(
        broker.store,
        broker.timers,
        broker.far,
        broker.ingest,
        broker.topics,
        broker.traffic,
        broker.transaction_tallies,
        broker.group_lags,
        broker.dead_letter_counts,
        broker.clock,
        broker.config,
        broker.statistics,
        connections,
    )


def window_loader(
    broker: Broker,
    *,
    root_uri: str,
    address: str,
    on_loaded: Callable[[], None],
    files: Files | None = None,
    builds: Builds | None = None,
) -> WindowLoader:
    """The loader of the windows that Spark hands back."""
    return WindowLoader(
        broker.store,
        broker.far,
        broker.window_skips,
        broker.clock,
        broker.client_clock,
        broker.config.pipeline,
        root_uri=root_uri,
        address=address,
        on_loaded=on_loaded,
        files=files,
        builds=builds,
    )


def restored_backup(broker: Broker, root_uri: str) -> RestoredBackup:
    """The check for a store that was restored from an old backup."""
    return RestoredBackup(broker.store, broker.far, broker.ingest, broker.pending, broker.lost_entries, root_uri)
