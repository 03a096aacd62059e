"""Settings of all processes: one frozen Config, merged from defaults, a TOML file, the environment and `--set`."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from latermq.addresses import is_loopback
from latermq.errors import ConfigError
from latermq.redaction import without_secrets
from latermq.setting_sources import Given, Problem, gather, variable_of
from latermq.setting_units import Duration as Duration
from latermq.setting_units import Size as Size

MIN_NEAR_HORIZON_MS = 1_000
MAX_NEAR_HORIZON_MS = 2 * 86_400_000
MIN_DRIVER_MEMORY_BYTES = 512 << 20  # Spark requires 450 MiB, and a part of the heap does not count
MIN_BUILD_TIMEOUT_MS = 1_000
MIN_TOKEN_CHARS = 16
MIN_TIMELINE_MEMORY_BYTES = 256 << 20
# Never shown to clients. The address of a webhook often contains its password.
SECRET_SETTINGS = frozenset({"http.token", "access.init_user", "alerts.webhook", "alerts.webhook_secret"})
MIN_ALERTS_EVERY_MS = 1_000
MIN_COPY_EVERY_MS = 10
MIN_AUDIT_FILE_BYTES = 64 << 10
MAX_AUDIT_FILES = 1_000
MIN_AUDIT_WAITING = 2_048  # above the counts of tallies, which are merged 1,024 at a time
MAX_HEAVY_AHEAD_MS = 3_600_000
MAX_TOPIC_QUEUES = 65_535  # the limit of name servers and clients
MAX_IN_FLIGHT = 1 << 20  # rows of the table of messages in flight
MIN_OPEN_QUEUES = 16  # a message's queue and the queue where it waits, with two files each at a file boundary
DEFAULT_METRICS_PORT = 5557  # the same as RocketMQ's
DEFAULT_NAMESRV_METRICS_PORT = 5558
DEFAULT_PROXY_METRICS_PORT = 5559
DEFAULT_PIPELINE_METRICS_PORT = 5560

MessageTypeName = Literal["MIXED", "NORMAL", "FIFO", "DELAY", "TRANSACTION"]

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+").fullmatch  # what a bearer token may contain
_SETTING_NAME = re.compile(r"\b[a-z]+\.[a-z_]+\b")
_FITTED = ("window", "roll_deadline", "ingest_every")


class BrokerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Identity of the broker and limits for its clients."""

    cluster: str = "DefaultCluster"
    name: str = "broker-a"
    id: int = 0
    advertise_host: str = ""  # the address that routes give to clients; empty: the host it listens on
    auto_create_topics: bool = True
    # The message type of auto-created topics. Clients of the 5.x protocol refuse to send other types to a topic.
    auto_topic_type: MessageTypeName = "MIXED"
    auto_create_groups: bool = True
    default_queues: int = 8
    max_message: Size = Size.parse("4MiB")
    max_batch_messages: int = 10_000
    max_batch_keys: int = 65_536  # all are indexed in one step, which takes about 20 ms
    pull_batch: Size = Size.parse("256KiB")  # maximum size of a pull reply, which always contains at least one message
    pull_max_messages: int = 1024
    pull_scan: int = 16_384  # queue entries whose tags one pull examines
    pull_work: int = 1 << 20  # cost limit of its filter: 1 per byte of a record, 8 per SQL word and message
    max_expression: Size = Size.parse("64KiB")  # maximum length of a subscription's expression
    max_expression_words: int = 2_048  # SQL words (a CONTAINS counts as 16), or tags
    filter_cache: Size = Size.parse("16MiB")  # memory for compiled expressions
    max_waiting_pulls: int = 100_000
    max_waiting_pulls_per_connection: int = 4_096  # a client needs one per queue and group
    max_waiting_filters: Size = Size.parse("64MiB")  # compiled expressions of waiting pulls, each counted once
    # Notifications for clients that read slowly. Each is stored once, however many clients still have to read it.
    max_held_notices: Size = Size.parse("64MiB")
    max_unflushed: int = 100_000  # with store.flush = sync: replies that wait for the disk
    max_unsaved: int = 1_000  # changes of topics, groups and offsets that wait to be saved
    max_client_calls: int = 20_000  # administrative queries that connected clients have not answered yet
    client_timeout: Duration = Duration.parse("120s")  # a client without a heartbeat for this long is removed
    queue_lock_timeout: Duration = Duration.parse("60s")
    offset_save_every: Duration = Duration.parse("5s")
    register_every: Duration = Duration.parse("10s")
    # A new group starts at a topic's first message if that is within this distance of the log's end, regardless of
    # the client's choice. RocketMQ does the same for messages that it still has in memory.
    recent_log: Size = Size.parse("8GiB")
    max_topics: int = 5_000
    max_topic_queues: int = 1_024  # per topic; existing topics with more queues keep them
    max_groups: int = 50_000
    max_group_config: Size = Size.parse("8KiB")  # of one group, as JSON; the defaults take 500 bytes
    max_group_configs: Size = Size.parse("64MiB")  # of all groups, as JSON; in memory twice, and in the file
    max_auto_created: int = 1_000  # topics, and as many groups, that clients on one host may auto-create per hour
    keep_unused: Duration = Duration.parse("1h")  # after this, unused auto-created groups and retry topics are removed
    max_offsets: int = 200_000  # of all groups in all queues; each takes about 100 bytes and is saved in the file
    default_request_mode: Literal["PULL", "POP"] = "PULL"  # of groups that leave rebalancing to the broker
    max_request_modes: int = 20_000  # (topic, group) pairs with a mode of their own
    max_clients: int = 100_000  # a client counts once per group
    max_group_members: int = 10_000
    max_connection_groups: int = 1_000  # groups of all clients on one connection
    max_queue_locks: int = 100_000  # queues locked by ordered consumers
    max_heartbeat: Size = Size.parse("512KiB")
    max_subscriptions: Size = Size.parse("64MiB")  # memory for the subscriptions of all groups


class StoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The log and the files derived from it."""

    flush: Literal["async", "sync"] = "async"
    flush_every: Duration = Duration.parse("500ms")
    checkpoint_every: Duration = Duration.parse("5s")
    checkpoint_after: Size = Size.parse("32MiB")  # growth of the log; about as much is read again after a crash
    segment: Size = Size.parse("1GiB")
    reserve_step: Size = Size.parse("64MiB")  # disk space is reserved in steps of this size, ahead of the writer
    resident: Size = Size.parse("64MiB")  # newest part of the log kept in the process's memory; readers map the rest
    queue_file_entries: int = 300_000
    max_queues: int = 50_000  # queues of all topics that have received a message; at the limit no queue is created
    max_open_queues: int = 8_192  # queue files mapped at once; lowered to the open-file limit of the process
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    retention: Duration = Duration.parse("72h")
    retention_every: Duration = Duration.parse("10s")
    disk_high: float = 0.85
    disk_full: float = 0.95


class TimerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pending timers and delay levels."""

    levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    stage: Size = Size.parse("512MiB")  # memory for messages due in the next seconds
    stage_ahead: Duration = Duration.parse("5s")  # how long before its due time a message is built
    block: Size = Size.parse("8MiB")  # maximum size of one delivery, after which other work runs
    build_every: Duration = Duration.parse("20ms")
    engine: Literal["wheel", "rocksdb"] = "wheel"
    log_file: Size = Size.parse("100MiB")  # size of one file of the wheel's timer log
    max_delay: Duration = Duration.parse("3650d")
    recall: bool = True  # whether clients may cancel
    slot_limit: int = 0  # timers due within one second; above it a growing share is refused; 0: no limit
    max_waiting: int = 1_000_000  # timers that are not in the engine yet; above it new ones are refused
    max_loaded: int = 4_000_000  # timers whose positions are loaded ahead of time, 33 bytes each
    max_lookup: int = 100_000  # records that one lookup of a name or a key reads; above it the request is refused
    import_precision: Duration = Duration.parse("1s")  # by how much RocketMQ rounds due times down


class TransactionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Open transactions, and when their producers are asked for a decision."""

    check_after: Duration = Duration.parse("6s")  # age of a half message at the first check
    check_every: Duration = Duration.parse("30s")
    checks: int = 15  # then the transaction is given up
    timeout: Duration = Duration.parse("72h")  # an older transaction is given up, whether its producer was asked or not
    max_open: int = 100_000  # open transactions, about 1 KB of memory each


class PopConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POP consumption: messages that a consumer holds for a time and acknowledges one by one."""

    max_in_flight: int = 200_000  # popped messages that are not acknowledged; each takes about 100 bytes
    max_in_flight_per_queue: int = 10_000  # of one group in one queue
    max_queues: int = 200_000  # queues that groups pop from, counted once per group
    max_waiting: int = 100_000  # pops that wait for messages
    max_waiting_per_queue: int = 1_024  # of one group for one queue, or for any queue, of a topic
    max_unjournalled: int = 100_000  # replies that wait for the journal, while the disk is full
    lease: Duration = Duration.parse("60s")  # how long a proxy's client holds messages after its last report
    max_hold: Duration = Duration.parse("3h")  # how long a proxy's client may hold messages
    max_reported_topics: int = 256  # shown of a group whose clients proxies report: each report copies them
    ack_batch: int = 16_384  # messages that one request acknowledges, in about 10 ms
    remembered_handles: int = 20_000  # of messages that were delivered again: they are refused as stale
    kept_log: Size = Size.parse("256MiB")  # the log that the journal keeps from retention, unless messages need more


class PipelineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Far timers, which wait in a timeline that Spark maintains.

    `window`, `roll_deadline` and `ingest_every` are shortened to fit a shorter near horizon, unless they are set
    (`_fit_horizon`).
    """

    enabled: bool = False  # whether new timers beyond the near horizon go to Spark
    near_horizon: Duration = Duration.parse("30m")  # timers due sooner stay in the broker
    window: Duration = Duration.parse("10m")  # the span of due time that Spark hands back at once
    ingest_every: Duration = Duration.parse("30s")
    timeline: str = ""  # URI of the folder with the timeline and its windows; empty: `pipeline` in the data directory
    # The file with the secret that brokers and their driver share. Empty: `<timeline>.secret` next to the timeline's
    # folder; if the timeline is a URI, `pipeline.secret` in the broker's data directory.
    secret_file: str = ""
    connect: bool = True  # whether the driver offers Spark Connect on loopback, to commands and notebooks
    connect_port: int = 15_002  # the same as Spark's; 0: any free port, as when this one is in use
    # The file with the address and the token of the running driver. Empty: next to the secret, with the ending
    # `.connect`.
    connect_file: str = ""
    master: str = "local[1]"
    driver_memory: Size = Size.parse("1GiB")
    roll_on: Literal["auto", "spark", "local"] = "auto"
    roll_spark_rows: int = 500_000  # with `auto`, windows with more rows are built on Spark
    roll_local_rows: int = 10_000_000  # windows with more rows are not built without Spark
    roll_deadline: Duration = Duration.parse("2m")  # how long before a window begins the broker builds it without Spark
    roll_timeout: Duration = Duration.parse("5m")  # to build one window; then the build process is killed
    compact_every: Duration = Duration.parse("1h")
    compact_unplaced: int = 100_000  # unplaced takers, above which the timeline is compacted at once
    compact_new: Size = Size.parse("1GiB")  # new files, above which the timeline is compacted at once
    keep: Duration = Duration.parse("7d")  # rows due this long ago move from the timeline to its archive
    archive_keep: Duration = Duration.parse("90d")  # rows due this long ago leave the archive; reports this old, too


class ClockConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The clock that decides when timers are due, and how large a step of it is trusted."""

    source: str = "system"  # or fifo:PATH, a pipe from which the broker reads the time in tests
    max_step: Duration = Duration.parse("1h")  # a larger forward jump holds deliveries for a minute


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Listening sockets and the limits of connections."""

    host: str = "127.0.0.1"
    namesrv_port: int = 9876
    port: int = 10911
    namesrv: str = ""  # name servers to register with, `host:port;host:port`; empty: the one of this process group
    max_frame: Size = Size.parse("16MiB")
    max_header: Size = Size.parse("256KiB")  # of a request; it is decoded in one step
    max_body: Size = Size.parse("1MiB")  # of a request that carries no messages; it is decoded in one step
    max_connections: int = 16_000
    max_connections_per_address: int = 4_000  # an IPv6 /64 counts as one address; 0: no limit
    max_held: Size = Size.parse("512MiB")  # unfinished requests and unread replies of all connections together
    turn: Duration = Duration.parse("3ms")  # how long one connection is served before others get their turn
    write_buffer: Size = Size.parse("4MiB")  # above it a connection's requests wait until the peer has read
    stalled_timeout: Duration = Duration.parse("60s")  # a peer that reads nothing for this long is disconnected
    idle_timeout: Duration = Duration.parse("300s")
    broker_timeout: Duration = Duration.parse("120s")  # a broker silent for this long is removed from the routes


class NameServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a name server, where any process may register."""

    max_brokers: int = 1_000  # including disconnected ones that may return
    max_host_brokers: int = 100  # brokers from one address
    max_topics: int = 100_000  # a topic counts once per broker that has it
    max_host_topics: int = 20_000  # topics of brokers at one address; registering 20,000 blocks the loop for 60 ms
    max_registration: Size = Size.parse("4MiB")  # topics of one broker, as JSON or decompressed
    max_kv: Size = Size.parse("1MiB")  # all names and values of the key-value table
    max_kv_entries: int = 10_000


class ProxyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The gRPC proxy for clients of the 5.x protocol."""

    host: str = ""  # the address to listen on; empty: server.host
    port: int = 8081  # the same as RocketMQ's
    namesrv: str = ""  # name servers, `host:port;host:port`; empty: those of server.namesrv
    tls: bool = True  # whether TLS is accepted; tls.mode decides about plaintext, on the same port
    certificate: str = ""  # PEM files of the certificate chain and its key; empty: those of tls.cert and tls.key
    key: str = ""
    broker_timeout: Duration = Duration.parse("3s")  # for the broker's answer to a request that does not wait
    route_refresh: Duration = Duration.parse("30s")
    # The message type of topics whose configuration names none: those of 4.x tools and of older stores.
    untyped_topics: MessageTypeName = "MIXED"
    max_routes: int = 10_000  # topics, including unknown ones, and as many groups
    max_broker_requests: int = 65_536  # unanswered requests to one broker
    poll_timeout: Duration = Duration.parse("20s")  # how long consumers wait for messages in one call
    # Before a receiver gets an error that may be over soon, as while its broker restarts; not longer than it waits.
    outage_pause: Duration = Duration.parse("1s")
    client_timeout: Duration = Duration.parse("120s")  # without a heartbeat; its messages are then released
    lost_client_timeout: Duration = Duration.parse("40s")  # the same without a telemetry stream
    max_clients: int = 50_000
    max_clients_per_address: int = 10_000  # an IPv6 /64 counts as one address; 0: no limit
    max_settings: Size = Size.parse("256KiB")  # of one client: its topics and subscriptions
    max_all_settings: Size = Size.parse("64MiB")  # of all clients
    max_connections: int = 10_000
    max_connections_per_address: int = 0  # 0: no limit
    # Addresses and networks of load balancers, separated by semicolons. Their connections must begin with a header of
    # the PROXY protocol, which states the client's address.
    balancers: str = ""
    max_connection_calls: int = 4_096  # concurrent calls on one connection
    max_request: Size = Size.parse("8MiB")  # one gRPC message, decompressed
    max_held: Size = Size.parse("256MiB")  # unfinished requests, open calls and unread answers of all connections
    write_buffer: Size = Size.parse("256KiB")  # unread answers of one stream, above which it waits
    max_unsent: Size = Size.parse("64MiB")  # popped messages of consumers that read slowly, in all
    return_timeout: Duration = Duration.parse("60s")  # for the return of messages whose consumer has gone
    max_returns: int = 10_000  # such returns that wait for another try, because a broker is away or busy
    max_send_messages: int = 1_000  # in one SendMessage: about 20 ms, during which no other client is served
    max_ack_entries: int = 4_096  # in one AckMessage: about 40 ms
    # Of one message. RocketMQ's proxy has the same defaults, except that it does not count keys.
    max_user_properties: int = 128
    max_user_properties_size: Size = Size.parse("16KiB")  # with the tag and the keys
    max_keys: int = 4_096
    max_message_group: int = 63  # bytes
    max_recovery: Duration = Duration.parse("1h")  # the first check of a transaction that a producer asks for
    min_invisible: Duration = Duration.parse("10s")  # that a receive may ask for
    max_invisible: Duration = Duration.parse("12h")  # that a receive or a change may ask for
    max_look_ups: int = 1_000  # of topics at the same time, and as many of groups
    request_timeout: Duration = Duration.parse("60s")  # for a request to arrive completely
    stalled_timeout: Duration = Duration.parse("60s")  # a peer that reads nothing for this long is disconnected
    idle_timeout: Duration = Duration.parse("120s")  # of a connection without calls
    stop_timeout: Duration = Duration.parse("10s")  # for calls in flight when the proxy stops


class HttpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP API and the web console."""

    host: str = "127.0.0.1"  # the address to listen on; another than loopback needs users or a token, and TLS
    port: int = 8080
    namesrv: str = ""  # name servers, `host:port;host:port`; empty: those of server.namesrv
    # The secret that clients send as `Authorization: Bearer …`. Empty: users only (access.enabled),
    # or no authentication, on loopback only.
    token: str = ""
    tls: bool = False  # whether it accepts HTTPS with the certificate of tls.cert, and nothing else
    # Whether others may sign in from other machines without http.tls, because a reverse proxy in front of it has TLS.
    plaintext: bool = False
    # Names under which clients reach this process, separated by semicolons, such as that of a reverse proxy. Addresses,
    # `localhost` and http.host are always accepted.
    hosts: str = ""
    session_timeout: Duration = Duration.parse("12h")  # how long a browser stays signed in
    sign_outs_file: str = ""  # keeps sign-outs over restarts; empty: a restart ends all sessions
    broker_timeout: Duration = Duration.parse("5s")  # for a broker's answer, with all retries
    request_timeout: Duration = Duration.parse("30s")  # from its headers to the end of its answer, or of each part
    header_timeout: Duration = Duration.parse("10s")  # for the headers of a request to arrive
    stalled_timeout: Duration = Duration.parse("60s")  # a peer that reads nothing for this long is disconnected
    stop_timeout: Duration = Duration.parse("5s")  # for requests in flight when the process stops
    rate: int = 1_000  # requests per second and client, an IPv6 /64 being one client; 0: no limit
    # Clients whose rate is known; above it the ones that asked least recently are forgotten.
    max_rate_clients: int = 10_000
    max_connections: int = 1_000
    max_requests: int = 100  # requests in progress
    max_streams: int = 100  # open event streams
    max_body: Size = Size.parse("16MiB")  # of a request
    max_held: Size = Size.parse("128MiB")  # bodies of all requests in progress
    max_batch: int = 10_000  # lines of one batch
    max_page: int = 1_000  # rows of one answer
    # The process that reads far timers from the timeline is ended when it is idle, slow or too large.
    timeline_idle: Duration = Duration.parse("2m")
    timeline_timeout: Duration = Duration.parse("20s")  # for one read and those before it; less than request_timeout
    timeline_memory: Size = Size.parse("1GiB")
    max_timeline_reads: int = 50  # reads in progress; they are done one after another
    jobs_folder: str = ""  # keeps jobs over restarts; empty: a temporary folder, and jobs end with the console
    max_jobs: int = 100  # that are kept, including finished ones; above it the oldest finished job is forgotten
    max_running_jobs: int = 4  # further ones wait. Users without the right to update the cluster have half of them
    max_user_jobs: int = 10  # of one such user, that have not finished
    max_job: int = 1_000_000  # timers or messages of one job
    delivery_rate: int = 500_000  # timers per second that one broker delivers at most, for predictions

    def __repr__(self) -> str:
        return without_secrets(self, "token")


class AccessConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Users and permissions."""

    enabled: bool = False
    mode: Literal["enforce", "log"] = "enforce"  # log: requests that would be refused are served, and logged
    insecure: bool = False  # listen for other machines even if users are not checked; logged every hour
    # `name:password` of a super user, created at the first start and never changed afterwards.
    init_user: str = ""
    # The file with the key that encrypts the users' secrets. The variable LATERMQ_SECRET_KEY replaces it. Without a
    # key, the secrets are stored in plain text.
    key_file: str = ""
    # The file with the secret that LaterMQ's own processes sign with. Empty: `latermq.inner` in the data directory.
    inner_file: str = ""
    max_users: int = 10_000
    max_entries: int = 1_000  # of the policies of one user
    admin_plaintext: bool = False  # whether administrative requests from other machines are served without TLS
    copy_every: Duration = Duration.parse("1s")  # how long a question for changed users waits at a broker
    call_age: Duration = Duration.parse("0s")  # of the time that a gRPC call is signed with; 0s: any

    def __repr__(self) -> str:
        return without_secrets(self, "init_user")


class AuditConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The audit log of processes that check users."""

    enabled: bool = True  # with access.enabled
    folder: str = ""  # empty: `audit` in the data directory
    file_size: Size = Size.parse("16MiB")  # of one file, then it is replaced by a new one
    files: int = 10  # of each kind: administrative requests, and counts
    flush_every: Duration = Duration.parse("60s")  # how often counts of data requests are written
    max_waiting: int = 20_000  # lines that wait for the disk; further ones are lost, and counted
    max_counters: int = 5_000  # kinds of requests; above it counts are written before the interval ends


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLS of the name server, the broker and the proxy, and of connections to them."""

    mode: Literal["disabled", "permissive", "enforcing"] = "permissive"  # permissive: TLS and plaintext on one port
    cert: str = ""  # PEM files of the certificate chain and its key; empty: a self-signed one in the data directory
    key: str = ""
    client_ca: str = ""  # PEM file with the authorities of client certificates; empty: none are asked for
    require_client_cert: bool = False  # whether a client without a certificate is refused
    reload_every: Duration = Duration.parse("10s")  # how often the files are checked for changes
    handshake_timeout: Duration = Duration.parse("10s")
    # Whether LaterMQ's own processes use TLS to name servers and brokers. auto: if tls.ca is set or tls.mode is
    # enforcing.
    connect: Literal["auto", "on", "off"] = "auto"
    ca: str = ""  # PEM file with the authorities of servers; empty: those of the system


class AlertsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the console raises an alert, and where it reports alerts."""

    webhook: str = ""  # URLs that alerts are posted to, separated by semicolons; empty: none
    webhook_secret: str = ""  # signs the messages; empty: no signature
    state_file: str = ""  # keeps alerts and unsent messages over restarts; empty: none
    every: Duration = Duration.parse("10s")  # how often brokers are asked while no page is open, if there is a webhook
    late: Duration = Duration.parse("1s")  # for the 99th percentile of the lateness of timers
    late_for: Duration = Duration.parse("1m")
    stuck: Duration = Duration.parse("30s")  # a timer is overdue, or deliveries are held, for this long
    group_stuck: Duration = Duration.parse("5m")  # a group consumes nothing although messages arrive
    group_lag: int = 100  # a stuck group with fewer messages to consume raises no alert
    window_overdue: Duration = Duration.parse("1m")  # after the deadline of a window that is not built
    offline: Duration = Duration.parse("30s")  # a broker or all name servers do not answer
    forget_broker: Duration = Duration.parse("1d")  # a broker that is away for longer is no longer expected
    disk: float = 0.8  # used share of the disk
    dead_letters: Duration = Duration.parse("10m")  # how long an alert lasts after the last new dead letter
    heavy_second: int = 100_000  # timers that are due in one second
    heavy_ahead: Duration = Duration.parse("1h")
    resolve_after: Duration = Duration.parse("1m")  # an alert ends if its condition did not hold for this long
    keep_resolved: Duration = Duration.parse("1h")  # how long resolved alerts are shown
    max_alerts: int = 1_000  # alerts at the same time, including resolved ones
    max_unsent: int = 1_000  # messages that wait for one webhook
    webhook_timeout: Duration = Duration.parse("10s")  # for one try
    retry_for: Duration = Duration.parse("1h")  # for all tries of one message

    def __repr__(self) -> str:
        return without_secrets(self, "webhook", "webhook_secret")


class MetricsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ports where monitoring systems read the metrics of each process."""

    port: int = DEFAULT_METRICS_PORT  # of the broker, on server.host; 0: off
    namesrv_port: int = DEFAULT_NAMESRV_METRICS_PORT  # of the name server, on server.host; 0: off
    proxy_port: int = DEFAULT_PROXY_METRICS_PORT  # of the proxy, on its host; 0: off
    pipeline_port: int = DEFAULT_PIPELINE_METRICS_PORT  # of the Spark driver, on server.host; 0: off
    tls: bool = False  # whether they accept HTTPS with the certificate of tls.cert, and nothing else


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Log output of all processes."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"
    max_value: int = 1_000  # characters per value; longer values are cut and their length is shown


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings; every section has defaults, so `Config()` is a working broker."""

    broker: BrokerConfig = BrokerConfig()
    store: StoreConfig = StoreConfig()
    timer: TimerConfig = TimerConfig()
    transaction: TransactionConfig = TransactionConfig()
    pop: PopConfig = PopConfig()
    pipeline: PipelineConfig = PipelineConfig()
    clock: ClockConfig = ClockConfig()
    server: ServerConfig = ServerConfig()
    namesrv: NameServerConfig = NameServerConfig()
    proxy: ProxyConfig = ProxyConfig()
    http: HttpConfig = HttpConfig()
    access: AccessConfig = AccessConfig()
    audit: AuditConfig = AuditConfig()
    tls: TlsConfig = TlsConfig()
    alerts: AlertsConfig = AlertsConfig()
    metrics: MetricsConfig = MetricsConfig()
    log: LogConfig = LogConfig()


SECTIONS = {section.name: section.type.__struct_fields__ for section in msgspec.structs.fields(Config)}
SETTING_TYPES: Mapping[str, Any] = {
    f"{section.name}.{field.name}": field.type
    for section in msgspec.structs.fields(Config)
    for field in msgspec.structs.fields(section.type)
}


def _decode_unit(type_: type, value: Any) -> Any:
    if type_ in (Duration, Size):
        if isinstance(value, type_):
            return value
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return type_(value)
        if isinstance(value, str):
            return type_.parse(value)
        raise ValueError(f"{value!r} is not valid; write {_expected(type_)}")
    raise NotImplementedError(f"no conversion to {type_}")


class LoadedConfig(NamedTuple):
    """Settings with the source of each, or what is wrong with them. `fitted` are shortened to fit the near horizon."""

    config: Config | None
    given: Mapping[str, Given]
    fitted: frozenset[str]
    problems: Sequence[Problem]


def load_config(
    file: Path | None = None,
    *,
    settings: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> Config:
    """Merge defaults, the TOML file, `LATERMQ_SECTION_KEY` variables and `section.key=value` settings; the last wins.

    `defaults` replaces defaults for commands that need different ones: section → key → value.
    """
    config, _, _, problems = load_with_sources(file, settings=settings, environment=environment, defaults=defaults)
    if config is None:
        first, more = problems[0], len(problems) - 1
        place = f" ({first.place})" if first.place else ""
        hints = [first.hint] if first.hint else []
        if more:
            count = "is 1 more problem" if more == 1 else f"are {more} more problems"
            hints.append(f"There {count}: `latermq config check` lists all")
        raise ConfigError(f"{first.message}{place}", hint=". ".join(hints).replace("?. ", "? "))
    return config


def load_with_sources(
    file: Path | None = None,
    *,
    settings: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> LoadedConfig:
    """Load settings like `load_config`, and return all problems. Raises ConfigError if the file cannot be read."""
    environment = os.environ if environment is None else environment
    given, problems = gather(SECTIONS, file, environment, settings, defaults or {})
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, one in given.items():
        section, _, key = name.partition(".")
        try:
            sections[section][key] = msgspec.convert(
                one.value, SETTING_TYPES[name], strict=False, dec_hook=_decode_unit
            )
        except msgspec.ValidationError as error:
            problems.append(_wrong_value(name, one, error))
    if problems:
        return LoadedConfig(None, given, frozenset(), problems)
    config = msgspec.convert(sections, Config, dec_hook=_decode_unit)
    pipeline = _fit_horizon(config.pipeline, sections["pipeline"])
    fitted = {f"pipeline.{key}" for key in _FITTED if getattr(pipeline, key) != getattr(config.pipeline, key)}
    config = msgspec.structs.replace(config, pipeline=pipeline)
    try:
        _check(config)
    except ConfigError as error:
        return LoadedConfig(None, given, frozenset(fitted), [_contradiction(given, error)])
    return LoadedConfig(config, given, frozenset(fitted), [])


def _wrong_value(name: str, given: Given, error: Exception) -> Problem:
    type_ = SETTING_TYPES[name]
    text = str(error)
    if name in SECRET_SETTINGS or "; use" not in text:
        shown = "" if name in SECRET_SETTINGS else f", not {given.value!r}"
        text = f"must be {_expected(type_)}{shown}"
    return Problem(given.place, name, f"{name}: {text}" if "; use" in text else f"{name} {text}")


def _expected(type_: Any) -> str:
    if choices := get_args(type_):
        return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))
    names = {
        bool: "true or false",
        int: "an integer",
        float: "a number",
        str: "text",
        Duration: "a number and ms, s, m, h or d, such as 90s",
        Size: "a number and B, KiB, MiB, GiB or TiB, such as 64MiB",
    }
    return names[type_]


def _contradiction(given: Mapping[str, Given], error: ConfigError) -> Problem:
    """What the check of the whole reports, with the places of the settings that it names."""
    named = [name for name in dict.fromkeys(_SETTING_NAME.findall(error.message)) if name in given]
    places = dict.fromkeys(given[name].place for name in named)
    return Problem(", ".join(filter(None, places)), ", ".join(named), error.message, error.hint)


def as_environment(settings: Iterable[str]) -> dict[str, str]:
    """Environment variables that are equivalent to these `section.key=value` settings, which must be valid."""
    pairs = (setting.partition("=") for setting in settings)
    return {variable_of(*path.strip().split(".", 1)): text.strip() for path, _, text in pairs}


def _fit_horizon(pipeline: PipelineConfig, explicit: Mapping[str, Any]) -> PipelineConfig:
    """Shorten the settings that must fit into the near horizon, unless they were set explicitly.

    A window takes a third of the horizon, which leaves two thirds to hand it back. A quarter of that is reserved for a
    build without Spark, and ingest runs eight times in the rest. With the default horizon nothing is shortened.
    """

    def fit(key: str, max_ms: int) -> Duration:
        value: Duration = getattr(pipeline, key)
        return value if key in explicit else Duration(max(1, min(value, max_ms)))

    window = fit("window", pipeline.near_horizon // 3)
    lead_ms = pipeline.near_horizon - window
    roll_deadline = fit("roll_deadline", lead_ms // 4)
    ingest_every = fit("ingest_every", (lead_ms - roll_deadline) // 8)
    return msgspec.structs.replace(pipeline, window=window, roll_deadline=roll_deadline, ingest_every=ingest_every)


def _check(config: Config) -> None:
    from latermq.config_checks import check_alerts, check_pipeline  # it imports this module

    store = config.store
    if not 0 < store.disk_high < store.disk_full <= 1:
        raise ConfigError("store.disk_high must be above 0 and below store.disk_full, and store.disk_full at most 1")
    if store.segment < 2 * config.broker.max_message:
        raise ConfigError(
            f"store.segment ({int(store.segment)}) must be at least twice broker.max_message "
            f"({int(config.broker.max_message)})"
        )
    if store.segment % 4096 or store.reserve_step % 4096 or not store.reserve_step:
        raise ConfigError("store.segment and store.reserve_step must be multiples of 4096 bytes")
    if config.pop.max_in_flight > MAX_IN_FLIGHT or config.pop.max_queues > MAX_IN_FLIGHT:
        raise ConfigError(f"pop.max_in_flight and pop.max_queues must be at most {MAX_IN_FLIGHT}")
    if config.server.max_frame <= config.broker.max_message:
        raise ConfigError("server.max_frame must be above broker.max_message")
    if config.server.max_held < config.server.max_frame:
        raise ConfigError("server.max_held must be at least server.max_frame")
    if config.server.turn < 1:
        raise ConfigError("server.turn must be at least 1ms")
    if config.server.max_connections_per_address < 0:
        raise ConfigError("server.max_connections_per_address must be 0 (no limit) or more")
    if config.timer.log_file < 4096:
        raise ConfigError("timer.log_file must be at least 4096 bytes")
    check_pipeline(config.pipeline)
    _check_proxy(config.proxy)
    _check_http(config.http, has_users=config.access.enabled and config.access.mode == "enforce")
    _check_access(config.access)
    _check_audit(config.audit)
    _check_tls(config)
    check_alerts(config.alerts)
    for key in ("port", "namesrv_port", "proxy_port", "pipeline_port"):
        port = getattr(config.metrics, key)
        if not 0 <= port <= 65_535:
            raise ConfigError(f"metrics.{key} must be 0–65535, not {port}")
    if not config.broker.default_queues <= config.broker.max_topic_queues <= MAX_TOPIC_QUEUES:
        raise ConfigError(
            f"broker.max_topic_queues must be at least broker.default_queues and at most {MAX_TOPIC_QUEUES}"
        )
    if store.max_open_queues < MIN_OPEN_QUEUES:
        raise ConfigError(f"store.max_open_queues must be at least {MIN_OPEN_QUEUES}")
    for name, value in (
        ("broker.default_queues", config.broker.default_queues),
        ("broker.pull_scan", config.broker.pull_scan),
        ("broker.pull_work", config.broker.pull_work),
        ("broker.max_expression", config.broker.max_expression),
        ("broker.max_expression_words", config.broker.max_expression_words),
        ("log.max_value", config.log.max_value),
        ("transaction.checks", config.transaction.checks),
        ("transaction.check_every", config.transaction.check_every),
        ("transaction.max_open", config.transaction.max_open),
        ("store.max_queues", store.max_queues),
        ("store.queue_file_entries", store.queue_file_entries),
        ("store.index_slots", store.index_slots),
        ("store.index_entries", store.index_entries),
    ):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1")


def networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Return the networks in a setting. An address is a network of its own. Raises ValueError."""
    return tuple(ip_network(item.strip()) for item in text.split(";") if item.strip())


def _check_proxy(proxy: ProxyConfig) -> None:
    if bool(proxy.certificate) != bool(proxy.key):
        raise ConfigError("proxy.certificate and proxy.key must be set together")
    if proxy.max_request < 64 * 1024 or proxy.max_held < proxy.max_request:
        raise ConfigError("proxy.max_request must be at least 64KiB, and proxy.max_held at least proxy.max_request")
    try:
        networks(proxy.balancers)
    except ValueError as error:
        raise ConfigError(
            f"proxy.balancers is malformed: {error}", hint="Write addresses and networks as in 10.1.2.3;10.2.0.0/16"
        ) from None
    for name in ("route_refresh", "broker_timeout", "client_timeout", "lost_client_timeout", "poll_timeout"):
        if not getattr(proxy, name):
            raise ConfigError(f"proxy.{name} must be above 0")
    for name in ("max_send_messages", "max_ack_entries", "max_message_group", "max_look_ups"):
        if getattr(proxy, name) < 1:
            raise ConfigError(f"proxy.{name} must be at least 1")
    if proxy.min_invisible > proxy.max_invisible:
        raise ConfigError("proxy.min_invisible must be at most proxy.max_invisible")


def _check_access(access: AccessConfig) -> None:
    name, colon, secret = access.init_user.partition(":")
    if access.init_user and not (colon and name.strip() and secret.strip()):
        raise ConfigError(
            "access.init_user must be a name, a colon and a password",
            hint="Set it in the environment, where other users do not see it: LATERMQ_ACCESS_INIT_USER=admin:PASSWORD",
        )
    for key in ("max_users", "max_entries"):
        if getattr(access, key) < 1:
            raise ConfigError(f"access.{key} must be at least 1")
    if access.copy_every < MIN_COPY_EVERY_MS:
        raise ConfigError(f"access.copy_every must be at least {MIN_COPY_EVERY_MS}ms")


def _check_audit(audit: AuditConfig) -> None:
    if audit.file_size < MIN_AUDIT_FILE_BYTES:
        raise ConfigError(f"audit.file_size must be at least {MIN_AUDIT_FILE_BYTES >> 10}KiB")
    if not 1 <= audit.files <= MAX_AUDIT_FILES:
        raise ConfigError(f"audit.files must be 1–{MAX_AUDIT_FILES}")
    if audit.flush_every < 1_000:
        raise ConfigError("audit.flush_every must be at least 1s")
    if audit.max_counters < 1 or audit.max_waiting < 2 * audit.max_counters + MIN_AUDIT_WAITING:
        raise ConfigError(
            f"audit.max_waiting must be at least twice audit.max_counters, and {MIN_AUDIT_WAITING} more",
            hint="All counts of an interval wait for the disk together",
        )


def _check_tls(config: Config) -> None:
    tls = config.tls
    if bool(tls.cert) != bool(tls.key):
        raise ConfigError("tls.cert and tls.key must be set together")
    if tls.require_client_cert and not tls.client_ca:
        raise ConfigError(
            "tls.require_client_cert needs tls.client_ca", hint="Set it to the file with the authority of the clients"
        )
    if tls.mode == "enforcing" and not config.proxy.tls:
        raise ConfigError(
            "proxy.tls is false and tls.mode is enforcing, so the proxy could not accept any connection",
            hint="Remove proxy.tls, or set tls.mode to permissive",
        )
    for key in ("reload_every", "handshake_timeout"):
        if not getattr(tls, key):
            raise ConfigError(f"tls.{key} must be above 0")


def _check_http(http: HttpConfig, *, has_users: bool) -> None:
    if not 0 <= http.port <= 65_535:
        raise ConfigError(f"http.port must be 0–65535, not {http.port}")
    if http.token and not (len(http.token) >= MIN_TOKEN_CHARS and _TOKEN(http.token)):
        raise ConfigError(
            f"http.token must have at least {MIN_TOKEN_CHARS} characters: letters, digits and -._~+/=",
            hint="Create one: openssl rand -hex 32",
        )
    if not is_loopback(http.host) and not http.token and not has_users:
        raise ConfigError(
            f"http.host is {http.host}, which other machines can reach, and http.token is empty",
            hint="Set access.enabled, http.token to the output of openssl rand -hex 32, or http.host to 127.0.0.1",
        )
    if not is_loopback(http.host) and not (http.tls or http.plaintext):
        secrets = "secrets of users are" if has_users else "the token is"
        raise ConfigError(
            f"others can reach http.host {http.host!r}, where {secrets} sent in plaintext without http.tls",
            hint="Set http.tls to true, or http.host to 127.0.0.1. If only a reverse proxy with TLS can reach it, set "
            "http.plaintext to true",
        )
    if http.max_held < http.max_body:
        raise ConfigError("http.max_held must be at least http.max_body")
    if http.rate < 0:
        raise ConfigError("http.rate must be 0 (no limit) or more")
    times = "session_timeout broker_timeout request_timeout header_timeout stalled_timeout"
    for name in f"{times} timeline_idle timeline_timeout".split():
        if not getattr(http, name):
            raise ConfigError(f"http.{name} must be above 0")
    if http.timeline_memory < MIN_TIMELINE_MEMORY_BYTES:
        raise ConfigError("http.timeline_memory must be at least 256MiB: the process needs that to start")
    limits = "max_rate_clients max_connections max_requests max_streams max_body max_batch max_page max_timeline_reads"
    for name in f"{limits} max_jobs max_running_jobs max_user_jobs max_job delivery_rate".split():
        if getattr(http, name) < 1:
            raise ConfigError(f"http.{name} must be at least 1")
