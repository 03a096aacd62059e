"""The name server: brokers register with it, and clients look up routes of topics."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
import uvloop

from latermq.addresses import network_of
from latermq.client.access.copied_access import NO_COPY
from latermq.clock import Clock, SystemClock
from latermq.config import DEFAULT_NAMESRV_METRICS_PORT, Config
from latermq.config_json.topics import DataVersionJson
from latermq.errors import LaterMQError, MalformedRequest, NoPermission, QueryNotFound, StoreError
from latermq.message.names import AUTO_CREATE_TOPIC
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.json_body import decode_body, encode_body
from latermq.protocol.remoting.request_decoder import decode_request, decode_signed_request
from latermq.protocol.remoting.routes import (
    BrokerMembersHeader,
    BrokerNameHeader,
    ClusterHeader,
    DeleteRouteHeader,
    KVKeyHeader,
    KVTable,
    LiveBrokerHeader,
    NamespaceHeader,
    PutKVHeader,
    RegisterBrokerBody,
    RegisterBrokerHeader,
    UnregisterBrokerHeader,
)
from latermq.protocol.remoting.topics import TopicHeader
from latermq.server.access.users import NO_REFUSALS
from latermq.server.broker.config_file_errors import log_config_file_errors
from latermq.server.change_log import Change
from latermq.server.metrics_server import MetricsServer
from latermq.server.namesrv.access import NameServerAccess
from latermq.server.namesrv.background_files import BackgroundThread, RunWork, at_once
from latermq.server.namesrv.known_brokers import KnownBrokers
from latermq.server.namesrv.kv_configs import ORDER_TOPICS, KVConfigs
from latermq.server.namesrv.name_server_metrics import NameServerMetrics
from latermq.server.namesrv.registration import read_registration
from latermq.server.namesrv.routes import RemovedBroker, Routes
from latermq.server.private_files import close_to_others
from latermq.server.remoting.access import DELETE, GET, LIST, PUB, SUB, UPDATE, on_cluster, on_topic, on_topics
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import BodyLimit, Endpoint, RequestTable
from latermq.server.remoting.listener import Listener
from latermq.server.server_tls import ServerTls
from latermq.store.files.disk import Disk, FileDisk

EXPIRE_EVERY_S = 5.0

_log = structlog.get_logger(__name__)


class NameServer:
    """Answers all requests of brokers, clients and operators to a name server."""

    def __init__(self, config: Config, clock: Clock, disk: Disk | None = None, run_work: RunWork = at_once) -> None:
        """Without a disk, the key-value table and the known brokers are lost at exit. `doing` runs the disk writes."""
        timeout_s = config.server.broker_timeout / 1000
        known = KnownBrokers(clock, timeout_s, disk, run_work)
        self.routes = Routes(clock, timeout_s, config.namesrv, known)
        self.kv_configs = KVConfigs(config.namesrv, disk, run_work)
        self.troubles = [one for one in (known.trouble, self.kv_configs.trouble) if one is not None]
        log_config_file_errors(self.troubles)
        self._config = config
        self.table = RequestTable(int(config.server.max_body))
        self.table.add(self._broker_endpoints())
        self.table.add(self._client_endpoints())
        self.table.add(self._settings_endpoints())

    def on_connect(self, connection: Connection) -> None:
        """Do nothing: a connection has no state before its first request."""

    def serve(self, connection: Connection, command: Command) -> bytes | None:
        return self.table.serve(connection, command)

    def on_turn_end(self) -> None:
        """Do nothing: there are no commands to commit as a group."""

    def on_drained(self, connection: Connection) -> None:
        """Do nothing: the server sends only responses to clients."""

    def on_disconnect(self, connection: Connection) -> None:
        if connection.attachment is not None:
            for gone in self.routes.remove_owner(connection):
                _log_removed(gone, "its connection closed")

    def expire(self) -> None:
        """Remove brokers that have been silent for too long, and close their connections."""
        for gone in self.routes.expire():
            _log_removed(gone, "no heartbeat")
            if isinstance(gone.owner, Connection):
                gone.owner.close()

    def finish(self) -> None:
        """Write unsaved changes to disk."""
        try:
            self.routes.known.finish()
            self.kv_configs.finish()
        except StoreError as error:
            _log.error("state only partly restored", reason=error.remark)

    def statistics(self) -> dict[str, int]:
        set_aside = {"config_files_set_aside": sum(bool(trouble.kept_as) for trouble in self.troubles)}
        return self.routes.statistics() | self.kv_configs.statistics() | set_aside

    # Brokers.

    def _broker_endpoints(self) -> list[Endpoint]:
        get, update = on_cluster(GET), on_cluster(UPDATE)
        registration = BodyLimit(
            int(self._config.server.max_frame), "server.max_frame"
        )  # `read_registration` applies further limits
        return [
            Endpoint(
                Request.REGISTER_BROKER,
                self._register,
                update,
                RegisterBrokerHeader,
                body=RegisterBrokerBody,
                body_limit=registration,
            ),
            Endpoint(Request.UNREGISTER_BROKER, self._unregister, update, UnregisterBrokerHeader),
            Endpoint(Request.BROKER_HEARTBEAT, self._heartbeat, update, LiveBrokerHeader),
            Endpoint(Request.QUERY_DATA_VERSION, self._data_version, update, LiveBrokerHeader, body=DataVersionJson),
            Endpoint(Request.GET_BROKER_MEMBER_GROUP, self._members, get, BrokerMembersHeader),
        ]

    def _register(self, connection: Connection, command: Command, header: RegisterBrokerHeader) -> bytes:
        # The broker is alive even if its registration is rejected. Otherwise one topic too many would expel it.
        self.routes.heartbeat(header.clusterName, header.brokerAddr, connection)
        body = read_registration(header, command.body, self._config.namesrv)
        registered = self.routes.register(header, body, connection, network_of(connection.peer[0]))
        if connection.attachment is None:
            connection.attachment = self  # marks the connection as a broker's
            connection.enable_keepalive()
        broker = {"cluster": header.clusterName, "broker": header.brokerName, "address": header.brokerAddr}
        if registered.is_new:
            _log.info("broker registered", **broker, id=header.brokerId, replaced=registered.replaced)
        fields = {}
        if registered.master_address is not None:
            fields = {"masterAddr": registered.master_address, "haServerAddr": registered.ha_address or ""}
        try:
            order_topics = encode_body(KVTable(table=self.kv_configs.entries(ORDER_TOPICS)))
        except QueryNotFound:
            order_topics = b""
        return encode_response(command, fields=fields, body=order_topics)

    def _unregister(self, connection: Connection, command: Command, header: UnregisterBrokerHeader) -> bytes:
        gone = self.routes.unregister(header.clusterName, header.brokerAddr, connection)
        if gone is not None:
            _log_removed(gone, "unregistered")
        return encode_response(command)

    def _heartbeat(self, connection: Connection, command: Command, header: LiveBrokerHeader) -> bytes:
        self.routes.heartbeat(header.clusterName, header.brokerAddr, connection)
        return encode_response(command)

    def _data_version(self, connection: Connection, command: Command, header: LiveBrokerHeader) -> bytes:
        theirs = decode_body(command.body, DataVersionJson)
        ours = self.routes.data_version(header.clusterName, header.brokerAddr)
        self.routes.heartbeat(header.clusterName, header.brokerAddr, connection)
        changed = "false" if ours == theirs else "true"
        body = b"" if ours is None else encode_body(ours)
        return encode_response(command, fields={"changed": changed}, body=body)

    def _members(self, _: Connection, command: Command, header: BrokerMembersHeader) -> bytes:
        members = self.routes.members(header.clusterName, header.brokerName)
        return encode_response(command, body=encode_body({"brokerMemberGroup": members}))

    # Clients and operators.

    def _client_endpoints(self) -> list[Endpoint]:
        lists, update = on_cluster(GET, LIST), on_cluster(UPDATE)
        route = (on_topics(_asked_topics, PUB, SUB, GET),)
        deleted = Change("topic deleted", ("topic", "clusterName"))
        forbidden, allowed = Change("writing forbidden", ("brokerName",)), Change("writing allowed", ("brokerName",))
        code = Request
        return [
            Endpoint(code.GET_ROUTEINFO_BY_TOPIC, self._route, route, TopicHeader),
            Endpoint(code.GET_BROKER_CLUSTER_INFO, self._cluster_info, on_cluster(GET)),
            Endpoint(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, self._topics, lists),
            Endpoint(code.GET_TOPICS_BY_CLUSTER, self._topics_of_cluster, lists, ClusterHeader),
            Endpoint(code.GET_SYSTEM_TOPIC_LIST_FROM_NS, self._system_topics, lists),
            Endpoint(
                code.DELETE_TOPIC_IN_NAMESRV,
                self._delete_topic,
                (on_topic("topic", DELETE),),
                DeleteRouteHeader,
                change=deleted,
            ),
            Endpoint(code.WIPE_WRITE_PERM_OF_BROKER, self._forbid_writing, update, BrokerNameHeader, change=forbidden),
            Endpoint(code.ADD_WRITE_PERM_OF_BROKER, self._allow_writing, update, BrokerNameHeader, change=allowed),
        ]

    def _route(self, _: Connection, command: Command, header: TopicHeader) -> bytes:
        topic = header.topic
        route = self.routes.route(topic)
        route.orderTopicConf = self.kv_configs.get(ORDER_TOPICS, topic)
        return encode_response(command, body=encode_body(route))

    def _cluster_info(self, _: Connection, command: Command, __: None) -> bytes:
        return encode_response(command, body=encode_body(self.routes.cluster_info()))

    def _topics(self, _: Connection, command: Command, __: None) -> bytes:
        return encode_response(command, body=encode_body(self.routes.topics()))

    def _topics_of_cluster(self, _: Connection, command: Command, header: ClusterHeader) -> bytes:
        topics = self.routes.topics_of_cluster(header.cluster)
        return encode_response(command, body=encode_body(topics))

    def _system_topics(self, _: Connection, command: Command, __: None) -> bytes:
        return encode_response(command, body=encode_body(self.routes.system_topics()))

    def _delete_topic(self, _: Connection, command: Command, header: DeleteRouteHeader) -> bytes:
        self.routes.delete_topic(header.topic, header.clusterName)
        return encode_response(command)

    def _forbid_writing(self, _: Connection, command: Command, header: BrokerNameHeader) -> bytes:
        return encode_response(command, fields={"wipeTopicCount": self._set_writable(header, False)})

    def _allow_writing(self, _: Connection, command: Command, header: BrokerNameHeader) -> bytes:
        return encode_response(command, fields={"addTopicCount": self._set_writable(header, True)})

    def _set_writable(self, header: BrokerNameHeader, writable: bool) -> str:
        return str(self.routes.set_writable(header.brokerName, writable))

    # Key-value table and settings.

    def _settings_endpoints(self) -> list[Endpoint]:
        get, update = on_cluster(GET), on_cluster(UPDATE)
        put, deleted = Change("key set", ("namespace", "key")), Change("key deleted", ("namespace", "key"))
        changed = Change("settings changed")
        return [
            Endpoint(Request.PUT_KV_CONFIG, self._put_kv, update, PutKVHeader, change=put),
            Endpoint(Request.GET_KV_CONFIG, self._get_kv, get, KVKeyHeader),
            Endpoint(Request.DELETE_KV_CONFIG, self._delete_kv, update, KVKeyHeader, change=deleted),
            Endpoint(Request.GET_KVLIST_BY_NAMESPACE, self._list_kv, get, NamespaceHeader),
            Endpoint(Request.GET_NAMESRV_CONFIG, self._get_config, get),
            Endpoint(Request.UPDATE_NAMESRV_CONFIG, self._update_config, update, change=changed),
        ]

    def _put_kv(self, connection: Connection, command: Command, header: PutKVHeader) -> None:
        self.kv_configs.put(header.namespace, header.key, header.value, _answer_later(connection, command))

    def _get_kv(self, _: Connection, command: Command, header: KVKeyHeader) -> bytes:
        value = self.kv_configs.get(header.namespace, header.key)
        if value is None:
            raise QueryNotFound(f"the name server has no key {header.key!r} in namespace {header.namespace!r}")
        return encode_response(command, fields={"value": value})

    def _delete_kv(self, connection: Connection, command: Command, header: KVKeyHeader) -> None:
        self.kv_configs.delete(header.namespace, header.key, _answer_later(connection, command))

    def _list_kv(self, _: Connection, command: Command, header: NamespaceHeader) -> bytes:
        entries = self.kv_configs.entries(header.namespace)
        return encode_response(command, body=encode_body(KVTable(table=entries)))

    def _get_config(self, _: Connection, command: Command, __: None) -> bytes:
        text = "".join(f"{key}={value}\n" for key, value in self._settings().items())
        return encode_response(command, body=text.encode())

    def _update_config(self, _: Connection, command: Command, __: None) -> bytes:
        """Reject changes, since settings are fixed until a restart. A request for the current values succeeds."""
        try:
            lines = [line.strip() for line in command.body.decode().splitlines()]
        except UnicodeDecodeError:
            raise MalformedRequest("the settings are not text") from None
        settings = self._settings()
        for line in lines:
            key, separator, value = line.partition("=")
            if line and not line.startswith("#") and (not separator or settings.get(key.strip()) != value.strip()):
                raise NoPermission(
                    f"the name server's setting {key.strip()!r} cannot be changed while it runs",
                    hint="Change it in the configuration file and restart the name server",
                )
        return encode_response(command)

    def _settings(self) -> dict[str, str]:
        own = {
            f"{section}.{key}": str(value)
            for section in ("server", "namesrv", "metrics")
            for key, value in msgspec.structs.asdict(getattr(self._config, section)).items()
        }
        return {"listenPort": str(self._config.server.namesrv_port), **own}


class NameServerProcess:
    """A name server with its socket and its disk. Call `start`, then `stop`, once each."""

    def __init__(self, config: Config, clock: Clock, data: Path | None = None) -> None:
        self._config = config
        self._background = BackgroundThread("names")
        disk = FileDisk(data) if data is not None else None
        if data is not None:
            close_to_others(data)
        self.server = NameServer(config, clock, disk, self._background)
        self._tls = ServerTls(config, data, clock)
        self._access: NameServerAccess | None = None
        decode = decode_request
        if config.access.enabled:
            self._access = NameServerAccess(config, data, clock, self.server.routes)
            self.server.table.set_guard(self._access.guard)
            decode = decode_signed_request
        self.listener = Listener(self.server, config.server, clock, decode, self._tls.port())
        metrics = NameServerMetrics(config, lambda: self.address, self._statistics)
        self._metrics = MetricsServer(metrics, self._tls.metrics_front())
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        return f"{self._config.server.host}:{self.listener.port}"

    def _statistics(self) -> dict[str, int]:
        parts = (self.server, self.listener, self._metrics, self._tls)
        access = self._access.statistics() if self._access is not None else NO_COPY | NO_REFUSALS
        return access | {name: count for part in parts for name, count in part.statistics().items()}

    async def start(self) -> None:
        server = self._config.server
        if self._access is not None:
            self._access.start()
        self._tls.watch()
        await self._start_metrics()
        await self.listener.start(server.host, server.namesrv_port)
        self._schedule_expiry(asyncio.get_running_loop())

    async def _start_metrics(self) -> None:
        host, metrics = self._config.server.host, self._config.metrics
        setting, default = "metrics.namesrv_port", DEFAULT_NAMESRV_METRICS_PORT
        if metrics.namesrv_port == metrics.port == default:
            # An operator who gave the broker this port may not know that it is the name server's default.
            _log.warning(
                "metrics disabled", reason=f"metrics.port is also {default}", hint=f"Set {setting} to a free port"
            )
            return
        await self._metrics.start_for(setting, host, metrics.namesrv_port, default)

    async def stop(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        await self.listener.close()
        if self._access is not None:
            await self._access.close()
        await self._tls.close()
        await self._metrics.close()
        self._background.stop()
        self.server.finish()

    def _schedule_expiry(self, loop: asyncio.AbstractEventLoop) -> None:
        every_s = min(EXPIRE_EVERY_S, self._config.server.broker_timeout / 4000)
        self._expiry = loop.call_later(every_s, self._schedule_expiry, loop)
        self.server.expire()


def run_name_server(config: Config, data: Path | None, ready: Callable[[str], None]) -> int:
    """Run a name server until SIGTERM or SIGINT. `ready` receives its address once it accepts connections."""

    async def run() -> None:
        process = NameServerProcess(config, SystemClock(), data)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await process.start()
        try:
            ready(f"name server {process.address}")
            await stop.wait()
        finally:
            await process.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return 0


def _asked_topics(_: Command, header: TopicHeader) -> tuple[str, ...]:
    """The topic of a route. That of auto-created topics, which producers of a new topic ask for, needs no right."""
    return () if header.topic == AUTO_CREATE_TOPIC else (header.topic,)


def _answer_later(connection: Connection, command: Command) -> Callable[[LaterMQError | None], None]:
    """A callback that answers a change once it is on disk or its write has failed."""

    def answer(error: LaterMQError | None) -> None:
        reply = encode_response(command) if error is None else connection.refuse(command, error)
        if not command.is_oneway:
            connection.send(reply)

    return answer


def _log_removed(gone: RemovedBroker, reason: str) -> None:
    _log.info("broker removed", cluster=gone.cluster, broker=gone.name, address=gone.address, reason=reason)
