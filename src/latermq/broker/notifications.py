"""What clients are told unasked: that their group has changed, or that its offsets were reset.

What changes often is told in rounds, the latest of each subject once to each connection, so that a request that changes
a group costs no more however many members it has. Who is behind with reading is told when it has caught up.
"""

from collections import deque
from collections.abc import Callable, Iterator

from latermq.errors import Busy
from latermq.group.members import Channel, Members

# From one round to the next. The first change is told at once, so a consumer that joins is not kept waiting for it.
ROUND_S = 0.1
SLICE_SENDS = 500  # before others have their turn: some 3 ms
SLICE_BYTES = 4 << 20  # the same for long notices: sockets take what they can before more follows
NOTICE_BYTES = 512  # what one takes beside its frames

CPP = "CPP"
About = tuple[object, ...]
Later = Callable[[float, Callable[[], None]], object]


class Notice:
    """One frame for every member of a group, kept once for all of them. A newer one about the same takes its place."""

    __slots__ = ("about", "for_cpp", "frame", "group", "holders")

    def __init__(self, about: About, group: str, frame: bytes, for_cpp: "Notice | None" = None) -> None:
        """`for_cpp` is the same in the form of C++ clients, where that is another."""
        self.about = about
        self.group = group
        self.frame = frame
        self.for_cpp = for_cpp
        self.holders: set[Channel] = set()

    @property
    def size_bytes(self) -> int:
        return NOTICE_BYTES + len(self.frame)


class Notices:
    """Those that are due, and those that wait for a client to read."""

    def __init__(self, members: Members, max_bytes: int, later: Later | None = None) -> None:
        """`later` calls back after some seconds. Without it, notices are sent at once."""
        self._members = members
        self._max_bytes = max_bytes
        self._later = later
        self._due: dict[About, Notice] = {}
        self._due_bytes = 0
        self._outgoing: Iterator[int] | None = None  # the round under way
        self._is_scheduled = False
        self._held: dict[Channel, dict[About, Notice]] = {}
        self._held_notices: dict[Notice, None] = {}
        self._held_bytes = 0
        self._sent = 0
        self._cut_off = 0

    def is_due(self, about: About) -> bool:
        """Whether the next round tells something about this."""
        return about in self._due

    def check_room(self) -> None:
        """Refuse what would make more to tell than clients have been told yet."""
        if self._due_bytes >= self._max_bytes:
            raise Busy(f"{len(self._due)} notifications are about to be sent", hint="Ask again in a moment")

    def tell(self, notice: Notice) -> None:
        """Tell all members of the notice's group, in the next round."""
        before = self._due.pop(notice.about, None)  # another place too: what was told in between comes first
        self._due[notice.about] = notice
        self._due_bytes += notice.size_bytes - (before.size_bytes if before else 0)
        if self._later is None:
            deque(self._start_round(), maxlen=0)
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._later(0, self._go_on)

    def _go_on(self) -> None:
        assert self._later is not None, "only it calls this"
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
        self._later(0 if self._outgoing is not None else ROUND_S, self._go_on)

    def _start_round(self) -> Iterator[int]:
        due, self._due, self._due_bytes = self._due, {}, 0
        return self._round(due)

    def _round(self, due: dict[About, Notice]) -> Iterator[int]:
        """Tell everyone, one connection a step; how many bytes each was sent."""
        while due:
            notice = due.pop(next(iter(due)))
            group = self._members.consumer_group(notice.group)
            if group is None:
                continue
            # Several clients may share a connection, and it is told once.
            for channel, language in {member.channel: member.language for member in group.members.values()}.items():
                yield 0 if channel.is_closing else self._tell(channel, notice, language)

    def _tell(self, channel: Channel, notice: Notice, language: str) -> int:
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
        if notice.about in held:
            self._release(channel, held.pop(notice.about))
        held[notice.about] = notice
        if not notice.holders:
            self._held_notices[notice] = None
            self._held_bytes += notice.size_bytes
        notice.holders.add(channel)
        while self._held_bytes > self._max_bytes:
            for behind in list(next(iter(self._held_notices)).holders):
                self._cut_off += 1
                self.on_disconnect(behind)
                behind.disconnect("it does not read what it is told")

    def _release(self, channel: Channel, notice: Notice) -> None:
        notice.holders.discard(channel)
        if not notice.holders:
            del self._held_notices[notice]
            self._held_bytes -= notice.size_bytes

    def on_drained(self, channel: Channel) -> None:
        """A client has read what it got: tell it the latest of what it missed, as far as it reads."""
        held = self._held.get(channel, {})
        while held and not channel.is_paused:
            notice = held.pop(next(iter(held)))
            self._release(channel, notice)
            self._sent += 1
            channel.send(notice.frame)
        if not held:
            self._held.pop(channel, None)

    def on_disconnect(self, channel: Channel) -> None:
        """A client has gone."""
        for notice in self._held.pop(channel, {}).values():
            self._release(channel, notice)

    def statistics(self) -> dict[str, int]:
        """What waits to be told, and since the start what was sent and how many read too little of it."""
        return {
            "notices_due": len(self._due),
            "notices_held": sum(map(len, self._held.values())),
            "notices_held_bytes": self._held_bytes,
            "notices_sent": self._sent,
            "notices_cut_off": self._cut_off,
        }
