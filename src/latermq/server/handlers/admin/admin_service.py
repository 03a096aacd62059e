"""The broker's side of every request that operators and their tools make."""

from collections.abc import Callable
from datetime import UTC, datetime

from latermq.broker.admin.runtime_info import Identity, broker_stats, replication_status, runtime_info, settings_text
from latermq.broker.broker import Broker
from latermq.config_json.topics import DataVersionJson
from latermq.errors import NoPermission
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.routes import KVTable
from latermq.protocol.remoting.runtime import StatsHeader
from latermq.server.handlers.admin.client_requests import ClientRequests
from latermq.server.handlers.admin.ground import Ground, Handler, TableSaves, WhenDone, Work, do_at_once, tell_nobody
from latermq.server.handlers.admin.group_requests import GroupRequests
from latermq.server.handlers.admin.message_requests import MessageRequests
from latermq.server.handlers.admin.topic_requests import TopicRequests
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.stepwise import LookUps


class AdminService:
    """All administration handlers, by request code."""

    def __init__(
        self,
        broker: Broker,
        *,
        address: str,
        program_version: str,
        beside: Callable[[list[Work], WhenDone], None] = do_at_once,
        announce: Callable[[Callable[[], None]], None] = tell_nobody,
        retain: Callable[[], None] = lambda: None,
        look_ups: LookUps | None = None,
    ) -> None:
        self._broker = broker
        self._retain = retain
        self._identity = Identity(address, program_version, broker.clock.now_ms())
        if look_ups is None:
            look_ups = LookUps(broker.config.timer.max_lookup)
        self.saves = TableSaves(broker, beside)
        self._ground = ground = Ground(broker, self._identity, look_ups, self.saves, announce)
        self._clients = ClientRequests(ground)
        self.handlers: dict[int, Handler] = {
            **TopicRequests(ground).handlers,
            **GroupRequests(ground).handlers,
            **MessageRequests(ground).handlers,
            **self._clients.handlers,
            Request.GET_BROKER_RUNTIME_INFO: self._runtime_info,
            Request.GET_BROKER_CONFIG: self._settings,
            Request.UPDATE_BROKER_CONFIG: self._change_settings,
            Request.VIEW_BROKER_STATS_DATA: self._stats,
            Request.GET_BROKER_HA_STATUS: self._replication,
            Request.CLEAN_EXPIRED_CONSUMEQUEUE: self._remove_expired,
            Request.DELETE_EXPIRED_COMMITLOG: self._remove_expired,
            Request.CLEAN_UNUSED_TOPIC: self._clean_unused_topics,
        }
        self.sample()

    def sample(self) -> None:
        """Keep the counts of the last minutes, hours and days going; call it about once a second."""
        now = datetime.fromtimestamp(self._broker.clock.now_ms() / 1000, UTC).astimezone()
        self._broker.traffic.begin_day(now.toordinal())
        self._broker.topic_traffic.sample(self._broker.clock.monotonic_s())

    def statistics(self) -> dict[str, int]:
        """What waits for the disk, for clients, and for its turn."""
        ground = self._ground
        slices = ground.look_ups.statistics() | ground.tables.statistics()
        return self.saves.statistics() | self._clients.statistics() | slices

    def _runtime_info(self, connection: Connection, command: Command) -> bytes:
        table = runtime_info(self._broker, self._identity)
        table.update((f"latermq_{name}", str(count)) for name, count in sorted(self.statistics().items()))
        return encode_response(command, body=encode_body(KVTable(table=table)))

    def _settings(self, connection: Connection, command: Command) -> bytes:
        version = encode_body(DataVersionJson(timestamp_ms=self._identity.started_ms)).decode()
        text = settings_text(self._broker.config, self._identity)
        return encode_response(command, fields={"version": version}, body=text.encode())

    def _change_settings(self, connection: Connection, command: Command) -> bytes:
        raise NoPermission(
            "the broker's settings are fixed while it runs", hint="Change them in its TOML file and start it again"
        )

    def _stats(self, connection: Connection, command: Command) -> bytes:
        header = command.header(StatsHeader)
        return encode_response(command, body=encode_body(broker_stats(self._broker, header.statsName, header.statsKey)))

    def _replication(self, connection: Connection, command: Command) -> bytes:
        return encode_response(command, body=encode_body(replication_status(self._broker)))

    def _remove_expired(self, connection: Connection, command: Command) -> bytes:
        """Remove now what would be removed at the next round: segments, and with them queue entries, past their age."""
        self._retain()
        return encode_response(command)

    def _clean_unused_topics(self, connection: Connection, command: Command) -> bytes:
        """Nothing is left to clean: queues go with their topic."""
        return encode_response(command)
