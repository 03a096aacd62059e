"""The first start on a store of RocketMQ: messages that its broker had in flight stay in flight.

RocketMQ moves a group's offset past the messages that it pops. It keeps them only as records for its revive topic:
timers until their messages are visible again, then in that topic, until they are stored for their next attempt.
"""

from collections.abc import Callable, Iterator

from latermq.broker.tables.topics import Topics
from latermq.config_json.java_json import UnreadableJson, decode_json
from latermq.config_json.pop_state import OrderInfoJson, OrderTableJson
from latermq.errors import CorruptStore
from latermq.group.offsets import ConsumerOffsets
from latermq.group.pop.apache_deliveries import ApacheDeliveries, Delivery, QueueKey, runs_of
from latermq.group.pop.operations import attempt_hash
from latermq.group.pop.popped_queue import PoppedQueue
from latermq.group.pop.rows import MAX_ROWS, windows_of
from latermq.group.pop.snapshot import PopSnapshot
from latermq.group.pop.table import MAX_VISIBLE_MS, InFlightTable
from latermq.group.subscriptions import SubscriptionGroups
from latermq.message.names import POP_TOPIC, REVIVE_GROUP, REVIVE_TOPIC_PREFIX, TIMER_TOPIC
from latermq.message.properties import REAL_TOPIC, TAGS
from latermq.message.record import Message, decode_record
from latermq.store.files.disk import Disk
from latermq.store.message_store import MessageStore
from latermq.store.queues.consume_queue import ENTRY, ConsumeQueue
from latermq.store.ranges import RangeSet
from latermq.timer.apache_import import entries_settled_by_apache

ORDER_PATH = "config/consumerOrderInfo.json"
KEY_VALUE_FOLDER = "kvStore"
_READ_AT_ONCE = 1_024
# An acknowledgement that RocketMQ stored while its timers were late may precede its checkpoint.
_ACKS_BEFORE = 1_024


class PopTakeover:
    """Fills the in-flight table from RocketMQ's records, once: afterwards the snapshot exists."""

    def __init__(
        self,
        disk: Disk,
        store: MessageStore,
        topics: Topics,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        table: InFlightTable,
        snapshot: PopSnapshot,
        now_ms: int,
    ) -> None:
        self._disk = disk
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._table = table
        self._now_ms = now_ms
        self.taken_over = 0  # messages in flight
        self.dropped = 0  # whose topic or group is deleted, or that have left the log: RocketMQ drops them too
        self.trouble = ""  # what could not be read, for operators
        self._revive_topics = [name for name in topics.table.topics if name.startswith(REVIVE_TOPIC_PREFIX)]
        journal = store.queues.find(POP_TOPIC, 0)
        if snapshot.is_saved or (journal is not None and journal.next_offset) or not self._revive_topics:
            return
        self._refuse_key_value_store()
        self._take_over_unordered()
        self._take_over_ordered()
        snapshot.save(0)

    def _refuse_key_value_store(self) -> None:
        if self._disk.list_names(KEY_VALUE_FOLDER):
            raise CorruptStore(
                f"RocketMQ's broker kept popped messages in {KEY_VALUE_FOLDER}/, which LaterMQ does not read",
                hint="Start RocketMQ's broker with popConsumerKVServiceEnable=false and popConsumerKVServiceInit=true, "
                "run `mqadmin exportPopRecord -b ADDRESS -d false`, stop it, and remove that folder. If you know "
                "that no message is in flight, only remove the folder",
            )

    # Messages popped from topics and their retry topics

    def _take_over_unordered(self) -> None:
        found = ApacheDeliveries(self._now_ms)
        for queue in self._store.queues:
            if queue.topic in self._revive_topics:
                # RocketMQ's offset is that of the last checkpoint whose messages were stored again.
                self._add_all(found, queue, self._offsets.get(REVIVE_GROUP, queue.topic, queue.queue_id) + 1)
        timers = self._store.queues.find(TIMER_TOPIC, 0)
        if timers is not None:
            self._add_timers(found, timers)
        if found.unreadable:
            self.trouble = f"{found.unreadable} records of RocketMQ's revive topic could not be read"
        held = {key: self._in_store(key, found) for key in found.queues()}
        count = sum(map(len, held.values()))
        if count > MAX_ROWS:
            raise CorruptStore(
                f"RocketMQ's broker left {count} popped messages in flight, and LaterMQ can take over {MAX_ROWS}",
                hint="Start RocketMQ's broker again without consumers, until the invisible times of messages are over",
            )
        for key, messages in held.items():
            if messages:
                popped = self._open(key, self._next_offset(key, found))
                for first, mask, delivery in runs_of(messages):
                    self._table.put_batch(popped, first, mask, delivery.pop_ms, delivery.visible_ms)
                for offset, delivery in messages:
                    if delivery.is_suspended:
                        self._table.change(popped, offset, delivery.pop_ms, delivery.visible_ms, is_suspended=True)
        self.taken_over += count

    def _add_all(self, found: ApacheDeliveries, queue: ConsumeQueue, first: int) -> None:
        for offset, message in self._messages(queue, first - _ACKS_BEFORE, lambda record, offset: True):
            found.add(message.properties.get(TAGS, ""), message.body, with_checkpoints=offset >= first)

    def _add_timers(self, found: ApacheDeliveries, queue: ConsumeQueue) -> None:
        settled = entries_settled_by_apache(self._disk, self._store.reader)
        delivered = self._store.waiting.delivered.get(0, RangeSet())
        prefix = REVIVE_TOPIC_PREFIX.encode()
        for _, message in self._messages(
            queue, 0, lambda record, offset: prefix in record and offset not in settled and offset not in delivered
        ):
            if message.properties.get(REAL_TOPIC) in self._revive_topics:
                found.add(message.properties.get(TAGS, ""), message.body)

    def _messages(
        self, queue: ConsumeQueue, first: int, is_wanted: Callable[[bytes, int], bool]
    ) -> Iterator[tuple[int, Message]]:
        offset = max(first, queue.min_offset)
        while entries := queue.entries(offset, _READ_AT_ONCE):
            for at, size, _ in ENTRY.iter_unpack(entries):
                record = self._store.log.read(at, size)
                if is_wanted(record, offset):
                    yield offset, decode_record(record)
                offset += 1

    def _in_store(self, key: QueueKey, found: ApacheDeliveries) -> list[tuple[int, Delivery]]:
        """Return the messages of a queue that are in flight and still exist.

        After a reset to an earlier offset, messages are before and after the group's offset. The group gets those after
        it from the queue.
        """
        held, end = found.held(key), self._next_offset(key, found)
        held = [one for one in held if one[0] < end]
        group, topic, queue_id = key
        queue = self._store.queues.find(topic, queue_id)
        if queue is None or self._topics.find(topic) is None or self._groups.find(group) is None:
            self.dropped += len(held)
            return []
        stored = [one for one in held if queue.min_offset <= one[0] < queue.next_offset]
        self.dropped += len(held) - len(stored)
        return stored

    def _next_offset(self, key: QueueKey, found: ApacheDeliveries) -> int:
        committed = self._offsets.get(*key)
        return committed if committed >= 0 else found.end(key)

    def _open(self, key: QueueKey, next_offset: int) -> PoppedQueue:
        queue = self._table.queues.get(key)
        return queue or self._table.open_queue(self._table.new_number(), *key, next_offset)

    # Messages popped in order

    def _take_over_ordered(self) -> None:
        data = self._disk.read(ORDER_PATH)
        if data is None:
            return
        try:
            table = decode_json(data, OrderTableJson).table
        except UnreadableJson as error:
            # The offset of an ordered group is before its popped messages, so they are all delivered again.
            self.trouble = f"{ORDER_PATH} does not parse: {error}"
            return
        for name, infos in table.items():
            topic, _, group = name.partition("@")
            for queue_id, info in infos.items():
                self._take_over_order((group, topic, queue_id), info)

    def _take_over_order(self, key: QueueKey, info: OrderInfoJson) -> None:
        group, topic, queue_id = key
        queue = self._store.queues.find(topic, queue_id)
        held = info.held
        if queue is None or self._topics.find(topic) is None or self._groups.find(group) is None:
            return
        # Otherwise the offset was reset, or the messages have left the log: the group continues at its offset.
        if (
            not held
            or held[0] != self._offsets.get(*key)
            or not queue.min_offset <= held[0] <= held[-1] < queue.next_offset
        ):
            return
        invisible_ms = max(0, info.invisible_ms or 0)
        last_ms = min(MAX_VISIBLE_MS, self._now_ms + invisible_ms)
        visible_ms = max(0, min(info.pop_ms + invisible_ms, last_ms))
        popped = self._open(key, info.offsets[-1] + 1)
        attempt = attempt_hash(info.attempt or "")
        for first, mask in windows_of(held):
            self._table.put_in_order(popped, first, mask, info.pop_ms, visible_ms, attempt=attempt)
        for offset in held:
            changed_ms = (info.visible_ms or {}).get(offset)
            if changed_ms is not None:
                self._table.change(
                    popped, offset, info.pop_ms, max(0, min(changed_ms, MAX_VISIBLE_MS)), is_suspended=False
                )
            self._table.rows.count[popped.singles[offset]] = max(0, (info.counts or {}).get(offset, 0))
        self.taken_over += len(held)
