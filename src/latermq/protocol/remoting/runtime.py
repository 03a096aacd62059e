"""The broker itself: statistics and the state of replication."""

from msgspec import Raw, Struct, field

from latermq.config_json.numbers import Int32, Int64


class StatsHeader(Struct, kw_only=True):
    """VIEW_BROKER_STATS_DATA (315)."""

    statsName: str
    statsKey: str


class StatsItem(Struct, kw_only=True):
    """How many, and how many a second, over one span of time."""

    sum: Int64
    tps: float
    avgpt: float = 0.0


class BrokerStats(Struct, kw_only=True):
    """VIEW_BROKER_STATS_DATA."""

    statsMinute: StatsItem
    statsHour: StatsItem
    statsDay: StatsItem


class ReplicationClient(Struct, kw_only=True):
    """The side of a replica in GET_BROKER_HA_STATUS; a master has none and says so with zeros."""

    masterAddr: str = ""
    transferredByteInSecond: Int64 = 0
    maxOffset: Int64 = 0
    lastReadTimestamp: Int64 = 0
    lastWriteTimestamp: Int64 = 0
    masterFlushOffset: Int64 = 0
    activated: bool = False


class ReplicationStatus(Struct, kw_only=True):
    """GET_BROKER_HA_STATUS of a master without replicas."""

    master: bool = True
    masterCommitLogMaxOffset: Int64
    inSyncSlaveNums: Int32 = 0
    haConnectionInfo: list[Raw] = field(default_factory=list)
    haClientRuntimeInfo: ReplicationClient = field(default_factory=ReplicationClient)
