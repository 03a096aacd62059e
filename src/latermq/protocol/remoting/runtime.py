"""Requests about the broker itself: statistics and replication state."""

from msgspec import Raw, Struct, field

from latermq.config_json.numbers import Int32, Int64


class StatsHeader(Struct, kw_only=True):
    """VIEW_BROKER_STATS_DATA (315)."""

    statsName: str
    statsKey: str


class StatsItem(Struct, kw_only=True):
    """Number and rate per second over one period."""

    sum: Int64
    tps: float
    avgpt: float = 0.0


class BrokerStats(Struct, kw_only=True):
    """VIEW_BROKER_STATS_DATA."""

    statsMinute: StatsItem
    statsHour: StatsItem
    statsDay: StatsItem


class ReplicationClient(Struct, kw_only=True):
    """The replica's part of GET_BROKER_HA_STATUS. A master is not a replica and reports zeros."""

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
