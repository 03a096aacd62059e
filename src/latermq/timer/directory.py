"""The directory: which timers of a name are pending, and what became of the others.

It is no file of its own. Every record of the timer topic and every delivered one carries the name it concerns as a key,
so the key index finds all that ever happened to a name, and the order of the log is the verdict. Nothing has to be
kept in step with it, and nothing rebuilt after a crash. Only Spark's timers outlive their records; what was known of
them when those went is in far_names.py, and is older than anything in the log.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from latermq.message.entry_id import decode_entry_id
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC
from latermq.message.properties import (
    DUE_MS,
    KEY_SEPARATOR,
    KEYS,
    MOVE,
    REAL_TOPIC,
    TIMER_DELETE_KEY,
    TIMER_ID,
    UNIQUE_KEY,
    encode_properties,
)
from latermq.message.record import Message
from latermq.message.timer_code import CANCEL, MOVED, kind_and_due, timer_kind
from latermq.message.timer_name import timer_name
from latermq.store.message_store import MessageStore
from latermq.timer.far_names import FarNames


class Fate(Enum):
    """What became of a name's timers."""

    UNKNOWN = 0
    PENDING = 1
    CANCELLED = 2
    DELIVERED = 3


@dataclass(slots=True)
class Entry:
    """What schedules: a timer, a roll of one, or a move."""

    entry: int
    timer_id: int  # the entry that first scheduled it
    due_ms: int
    topic: str
    message: Message | None  # None where its record has left the log


@dataclass(slots=True)
class History:
    """All that happened to one name, told by the log."""

    fate: Fate = Fate.UNKNOWN
    due_ms: int = 0  # of what was last scheduled
    pending: dict[int, Entry] = field(default_factory=dict)
    taken_by: dict[int, list[Entry]] = field(default_factory=dict)  # for each cancel and move, what it took


class Directory:
    """Looks names up in the store."""

    def __init__(self, store: MessageStore, far_names: FarNames, wake_from_ms: Callable[[], int]) -> None:
        """`wake_from_ms` is T: what is due before was delivered or taken."""
        self._store = store
        self._far_names = far_names
        self._wake_from_ms = wake_from_ms

    def history(self, topic: str, unique_key: str, *, whole: bool = False) -> History:
        """What happened to the timers of this name, from its last move on or from the first record kept.

        A move takes all there was, so what came before it changes nothing: a time-out that is moved all the time costs
        no more than one that never was.
        """
        found: dict[int, Message] = {}
        start = 0
        for message in self._messages(TIMER_TOPIC, unique_key):
            found[message.physical_offset] = message
            if not whole and _is_move_of(message, topic, unique_key):
                start = message.physical_offset
                break
        for where, key in (
            (TIMER_TOPIC, timer_name(topic, unique_key)),
            (topic, unique_key),
            (TIMER_DEAD_LETTER_TOPIC, unique_key),
        ):
            found |= {message.physical_offset: message for message in self._messages(where, key, start)}
        history = self._far_history(topic, unique_key)
        for _, message in sorted(found.items()):
            self._tell(history, message, topic, unique_key)
        if history.pending:
            history.fate = Fate.PENDING
        return history

    def _far_history(self, topic: str, unique_key: str) -> History:
        """What is known of the name's timers that have left the log."""
        history = History()
        names = self._far_names
        cancelled_ms = names.cancelled_due_ms(topic, unique_key)
        if cancelled_ms is not None:
            history.fate, history.due_ms = Fate.CANCELLED, cancelled_ms
        for entry, timer_id, due_ms in names.pending(topic, unique_key, self._wake_from_ms()):
            history.pending[entry] = Entry(entry, timer_id, due_ms, topic, None)
            history.due_ms = due_ms
        return history

    def _tell(self, history: History, message: Message, topic: str, unique_key: str) -> None:
        properties = message.properties
        replaced = decode_entry_id(message.prepared_transaction_offset)
        if message.topic != TIMER_TOPIC:
            is_own = message.topic == topic or properties.get(REAL_TOPIC) == topic
            if is_own and replaced is not None and replaced[0] == 0 and properties.get(UNIQUE_KEY) == unique_key:
                history.pending.pop(replaced[1], None)
                history.fate = Fate.DELIVERED
            return
        kind = timer_kind(encode_properties(properties).encode())
        if kind == CANCEL:
            if properties[TIMER_DELETE_KEY] == timer_name(topic, unique_key):
                self._take_all(history, message)
            return
        if properties.get(REAL_TOPIC) != topic or properties.get(UNIQUE_KEY) != unique_key:
            return
        if kind == MOVED:
            self._take_all(history, message)
        elif replaced is not None:
            history.pending.pop(replaced[1], None)  # rolled
        due = properties.get(DUE_MS, "")
        if not due.isdigit():  # RocketMQ wrote it
            due = str(kind_and_due(self._store.waiting_code_at(message.physical_offset))[1])
        history.due_ms = int(due)
        entry = message.queue_offset
        history.pending[entry] = Entry(entry, int(properties.get(TIMER_ID, entry)), history.due_ms, topic, message)

    def _take_all(self, history: History, by: Message) -> None:
        if history.pending:
            history.fate = Fate.CANCELLED
        history.taken_by[by.queue_offset] = list(history.pending.values())
        history.pending.clear()

    def unique_keys(self, topic: str, key: str, limit: int) -> list[str]:
        """The unique keys of timers, pending or not, that were scheduled with this message key; at most so many."""
        keys: dict[str, None] = {}
        for message in itertools.chain(self._messages(TIMER_TOPIC, key), self._messages(topic, key)):
            if len(keys) >= limit:
                break
            properties = message.properties
            replaced = decode_entry_id(message.prepared_transaction_offset)
            is_timer = message.topic == TIMER_TOPIC or (replaced is not None and replaced[0] == 0)
            if (
                is_timer
                and properties.get(REAL_TOPIC) == topic
                and key in properties.get(KEYS, "").split(KEY_SEPARATOR)
            ):
                keys[properties.get(UNIQUE_KEY, "")] = None
        gone = itertools.islice(self._far_names.unique_keys(topic, key), max(0, limit - len(keys)))
        keys |= dict.fromkeys(gone)
        return list(keys)

    def _messages(self, topic: str, key: str, start: int = 0) -> Iterator[Message]:
        """The records of a topic that may have this key, from a log offset on, the newest first."""
        for offset in self._store.find_all_by_key(topic, key):
            message = self._store.read_message(offset) if offset >= start else None
            if message is not None and message.topic == topic:
                yield message


def _is_move_of(message: Message, topic: str, unique_key: str) -> bool:
    properties = message.properties
    is_own = properties.get(REAL_TOPIC) == topic and properties.get(UNIQUE_KEY) == unique_key
    return is_own and bool(properties.get(MOVE)) and not properties.get(TIMER_DELETE_KEY)
