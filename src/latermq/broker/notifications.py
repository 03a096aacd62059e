"""Notifications that the broker sends to clients: their group has changed, or its offsets were reset.

Notices are sent in rounds: only the latest notice on each subject, once per connection. So the cost of a request that
changes a group does not depend on the number of members. A client with unread data gets its notices after reading.
"""

from collections import deque
from collections.abc import Callable, Iterator

from latermq.errors import Busy
from latermq.group.members import Channel, Members

# Between two rounds. The first change is sent at once, so that a consumer that joins does not wait for it.
ROUND_S = 0.1
SLICE_SENDS = 500  # per slice, before other work runs: about 3 ms
SLICE_BYTES = 4 << 20  # the same for long notices, so that sockets can send before more data follows
NOTICE_BYTES = 512  # size of a notice without its frame

CPP = "CPP"
Subject = tuple[object, ...]
CallLater = Callable[[float, Callable[[], None]], object]


class Notice:
    """One frame for all members of a group, stored once. A newer notice on the same subject replaces it."""

    __slots__ = ("for_cpp", "frame", "group", "holders", "subject")

    def __init__(self, subject: Subject, group: str, frame: bytes, for_cpp: "Notice | None" = None) -> None:
        """`for_cpp` is the same notice in the format of C++ clients, if that differs."""
        self.subject = subject
        self.group = group
        self.frame = frame
        self.for_cpp = for_cpp
        self.holders: set[Channel] = set()

    @property
    def size_bytes(self) -> int:
        return NOTICE_BYTES + len(self.frame)


class Notices:
    """Notices for the next round, and notices held for clients with unread data."""

    def __init__(self, members: Members, max_bytes: int, call_later: CallLater | None = None) -> None:
        """`call_later` calls a function after a number of seconds. Without it, notices are sent at once."""
        self._members = members
        self._max_bytes = max_bytes
        self._call_later = call_later
        self._due: dict[Subject, Notice] = {}
        self._due_bytes = 0
        self._outgoing: Iterator[int] | None = None  # the current round
        self._is_scheduled = False
        self._held: dict[Channel, dict[Subject, Notice]] = {}
        self._held_notices: dict[Notice, None] = {}
        self._held_bytes = 0
        self._sent = 0
        self._disconnected = 0

    def is_due(self, subject: Subject) -> bool:
        """Whether the next round has a notice on this subject."""
        return subject in self._due

    def check_room(self) -> None:
        """Refuse a request that would add notices while too many bytes are due."""
        if self._due_bytes >= self._max_bytes:
            raise Busy(f"{len(self._due)} notifications are still to be sent", hint="Try again in a moment")

    def send(self, notice: Notice) -> None:
        """Send a notice to all members of its group in the next round."""
        previous = self._due.pop(notice.subject, None)  # the new one goes to the end, after notices added since
        self._due[notice.subject] = notice
        self._due_bytes += notice.size_bytes - (previous.size_bytes if previous else 0)
        if self._call_later is None:
            deque(self._start_round(), maxlen=0)
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._call_later(0, self._run_slice)

    def _run_slice(self) -> None:
        assert self._call_later is not None, "only call_later runs this"
        if self._outgoing is None:
            if not self._due:
                self._is_scheduled = False
                return
            self._outgoing = self._start_round()
        sends = sent_bytes = 0
        for frame_bytes in self._outgoing:
            sends, sent_bytes = sends + 1, sent_bytes + frame_bytes
            if sends >= SLICE_SENDS or sent_bytes >= SLICE_BYTES:
                break
        else:
            self._outgoing = None
        self._call_later(0 if self._outgoing is not None else ROUND_S, self._run_slice)

    def _start_round(self) -> Iterator[int]:
        due, self._due, self._due_bytes = self._due, {}, 0
        return self._round(due)

    def _round(self, due: dict[Subject, Notice]) -> Iterator[int]:
        """Send all due notices, one connection per step; yield the bytes sent to it."""
        while due:
            notice = due.pop(next(iter(due)))
            group = self._members.consumer_group(notice.group)
            if group is None:
                continue
            # Several clients may share a connection, which gets the notice once.
            for channel, language in {member.channel: member.language for member in group.members.values()}.items():
                yield 0 if channel.is_closing else self._send_or_hold(channel, notice, language)

    def _send_or_hold(self, channel: Channel, notice: Notice, language: str) -> int:
        if language == CPP and notice.for_cpp is not None:
            notice = notice.for_cpp
        if channel.is_paused or channel in self._held:
            self._hold(channel, notice)
            return 0
        self._sent += 1
        channel.send(notice.frame)
        return len(notice.frame)

    def _hold(self, channel: Channel, notice: Notice) -> None:
        held = self._held.setdefault(channel, {})
        if notice.subject in held:
            self._release(channel, held.pop(notice.subject))
        held[notice.subject] = notice
        if not notice.holders:
            self._held_notices[notice] = None
            self._held_bytes += notice.size_bytes
        notice.holders.add(channel)
        while self._held_bytes > self._max_bytes:
            for slow_channel in list(next(iter(self._held_notices)).holders):
                self._disconnected += 1
                self.on_disconnect(slow_channel)
                slow_channel.disconnect("it does not read its notifications")

    def _release(self, channel: Channel, notice: Notice) -> None:
        notice.holders.discard(channel)
        if not notice.holders:
            del self._held_notices[notice]
            self._held_bytes -= notice.size_bytes

    def on_drained(self, channel: Channel) -> None:
        """Send the held notices of a client that has read its data, until it has unread data again."""
        held = self._held.get(channel, {})
        while held and not channel.is_paused:
            notice = held.pop(next(iter(held)))
            self._release(channel, notice)
            self._sent += 1
            channel.send(notice.frame)
        if not held:
            self._held.pop(channel, None)

    def on_disconnect(self, channel: Channel) -> None:
        """Drop the held notices of a disconnected client."""
        for notice in self._held.pop(channel, {}).values():
            self._release(channel, notice)

    def statistics(self) -> dict[str, int]:
        """Notices due and held; since the start, notices sent and connections closed because they did not read."""
        return {
            "notices_due": len(self._due),
            "notices_held": sum(map(len, self._held.values())),
            "notices_held_bytes": self._held_bytes,
            "notices_sent": self._sent,
            "notices_cut_off": self._disconnected,
        }
