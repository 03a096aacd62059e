"""Administration requests: the broker's state and settings, and the table of all other administration requests."""

from collections.abc import Callable
from datetime import UTC, datetime

from latermq.broker.admin.runtime_info import RuntimeInfo, settings_text
from latermq.clock import Clock
from latermq.config_json.topics import DataVersionJson
from latermq.errors import NoPermission
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.routes import KVTable
from latermq.protocol.remoting.runtime import ReplicationStatus, StatsHeader
from latermq.server.change_log import Change
from latermq.server.handlers.admin.client_requests import ClientRequests
from latermq.server.handlers.admin.context import AdminContext
from latermq.server.handlers.admin.group_requests import GroupRequests
from latermq.server.handlers.admin.message_requests import MessageRequests
from latermq.server.handlers.admin.statistics_bodies import broker_stats
from latermq.server.handlers.admin.topic_requests import TopicRequests
from latermq.server.handlers.assignments import AssignmentRequests
from latermq.server.remoting.access import GET, UPDATE, on_cluster
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint
from latermq.server.remoting.sliced_requests import SlicedRequests
from latermq.store.commit_log import CommitLog


class AdminRequests:
    """Serves these requests, and lists those of topics, groups, messages, clients and assignments."""

    def __init__(
        self,
        runtime_info: RuntimeInfo,
        log: CommitLog,
        clock: Clock,
        context: AdminContext,
        topics: TopicRequests,
        groups: GroupRequests,
        messages: MessageRequests,
        clients: ClientRequests,
        assignments: AssignmentRequests,
        *,
        retain: Callable[[], None] = lambda: None,
        sliced: SlicedRequests,
    ) -> None:
        """`retain` removes expired segments now."""
        self._info = runtime_info
        self._log = log
        self._clock = clock
        self._config = context.config
        self._identity = context.identity
        self.saves = context.saves
        self._clients = clients
        self._subjects = (topics, groups, messages, clients, assignments)
        self._retain = retain
        self._sliced = sliced
        self.sample()

    @property
    def endpoints(self) -> list[Endpoint]:
        """All administration requests."""
        settings, clean_up = Change("settings changed"), Change("clean-up requested")
        get, update, code = on_cluster(GET), on_cluster(UPDATE), Request
        own = [
            Endpoint(code.GET_BROKER_RUNTIME_INFO, self._runtime_info, get),
            Endpoint(code.GET_BROKER_CONFIG, self._settings, get),
            Endpoint(code.UPDATE_BROKER_CONFIG, self._change_settings, update, change=settings),
            Endpoint(code.VIEW_BROKER_STATS_DATA, self._stats, get, StatsHeader),
            Endpoint(code.GET_BROKER_HA_STATUS, self._replication, get),
            Endpoint(code.CLEAN_EXPIRED_CONSUMEQUEUE, self._remove_expired, update, change=clean_up),
            Endpoint(code.DELETE_EXPIRED_COMMITLOG, self._remove_expired, update, change=clean_up),
            Endpoint(code.CLEAN_UNUSED_TOPIC, self._clean_unused_topics, update, change=clean_up),
        ]
        return [*own, *(endpoint for subject in self._subjects for endpoint in subject.endpoints)]

    def sample(self) -> None:
        """Update the counts of the last minutes, hours and days. Call it about once per second."""
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).astimezone()
        self._info.begin_day(now.toordinal())

    def statistics(self) -> dict[str, int]:
        """Counts of requests that wait for the disk, for clients or for their next slice."""
        return self.saves.statistics() | self._clients.statistics() | self._sliced.statistics()

    def _runtime_info(self, connection: Connection, command: Command, _: None) -> bytes:
        table = self._info.table(self._identity)
        table.update((f"latermq_{name}", str(count)) for name, count in sorted(self.statistics().items()))
        return encode_response(command, body=encode_body(KVTable(table=table)))

    def _settings(self, connection: Connection, command: Command, _: None) -> bytes:
        version = encode_body(DataVersionJson(timestamp_ms=self._identity.started_ms)).decode()
        text = settings_text(self._config, self._identity)
        return encode_response(command, fields={"version": version}, body=text.encode())

    def _change_settings(self, connection: Connection, command: Command, _: None) -> bytes:
        raise NoPermission(
            "the broker's settings cannot be changed while it runs",
            hint="Change them in the broker's TOML file and restart it",
        )

    def _stats(self, connection: Connection, command: Command, header: StatsHeader) -> bytes:
        counts = self._info.message_counts(header.statsName, header.statsKey)
        return encode_response(command, body=encode_body(broker_stats(counts)))

    def _replication(self, connection: Connection, command: Command, _: None) -> bytes:
        """Return the status of a broker without replicas, the only kind there is."""
        status = ReplicationStatus(masterCommitLogMaxOffset=self._log.end)
        return encode_response(command, body=encode_body(status))

    def _remove_expired(self, connection: Connection, command: Command, _: None) -> bytes:
        """Run retention now instead of at its next round: remove expired segments and their queue entries."""
        self._retain()
        return encode_response(command)

    def _clean_unused_topics(self, connection: Connection, command: Command, _: None) -> bytes:
        """Do nothing: queues are deleted with their topic, so none are unused."""
        return encode_response(command)
