"""RocketMQ's JSON format of popped messages: records of its revive topic, and consumerOrderInfo.json."""

from msgspec import Struct, field

from latermq.config_json.numbers import Int32, Int64


class CheckPointJson(
    Struct,
    rename={
        "group": "c", "topic": "t", "queue_id": "q", "pop_ms": "pt", "invisible_ms": "it", "start_offset": "so",
        "count": "n", "distances": "d", "acknowledged": "bm", "is_suspended": "sp",
    },
):  # fmt: skip
    """Messages of one pop, or one message whose invisible time was changed. Tag `ck`."""

    group: str
    topic: str
    queue_id: Int32
    pop_ms: Int64
    invisible_ms: Int64
    start_offset: Int64
    count: Int32 = 0
    distances: list[Int32] | None = None  # of each message from the first; without it they are consecutive
    acknowledged: Int32 = 0  # bit i: the i-th message
    is_suspended: bool = False

    @property
    def offsets(self) -> list[int]:
        """The queue offsets of the messages that are not acknowledged."""
        distances = self.distances or range(self.count)
        return [
            self.start_offset + distance
            for number, distance in enumerate(distances)
            if not self.acknowledged >> number & 1
        ]


class AckJson(
    Struct,
    rename={
        "group": "c", "topic": "t", "queue_id": "q", "pop_ms": "pt", "offset": "ao", "offsets": "aol",
    },
):  # fmt: skip
    """Acknowledged messages of one pop. Tag `ack` with one offset, tag `bAck` with several."""

    group: str
    topic: str
    queue_id: Int32
    pop_ms: Int64
    offset: Int64 = -1
    offsets: list[Int64] = field(default_factory=list)


class OrderInfoJson(
    Struct,
    rename={
        "pop_ms": "popTime", "invisible_ms": "i", "distances": "o", "visible_ms": "ot", "counts": "oc",
        "acknowledged": "cm", "attempt": "a",
    },
):  # fmt: skip
    """The last pop in order from a queue. The first of `distances` is an offset, the others are distances from it."""

    pop_ms: Int64
    distances: list[Int64]
    invisible_ms: Int64 | None = None
    visible_ms: dict[Int64, Int64] | None = None  # by offset, of messages whose invisible time was changed
    counts: dict[Int64, Int32] | None = None  # by offset: earlier deliveries
    acknowledged: Int64 = 0  # bit i: the i-th message
    attempt: str | None = None

    @property
    def offsets(self) -> list[int]:
        """The queue offsets of all messages."""
        first = self.distances[:1]
        return first + [first[0] + distance for distance in self.distances[1:]]

    @property
    def held(self) -> list[int]:
        """The queue offsets of the messages that are not acknowledged."""
        return [offset for number, offset in enumerate(self.offsets) if not self.acknowledged >> number & 1]


class OrderTableJson(Struct):
    """consumerOrderInfo.json: `topic@group` → queue id → the last pop."""

    table: dict[str, dict[Int32, OrderInfoJson]] = field(default_factory=dict)
