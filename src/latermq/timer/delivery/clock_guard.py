"""Watches the wall clock: a step back delivers nothing early, a great leap forward is not believed at once.

What is believed is the distance between the wall clock and the machine's uptime. Only a clock that is set changes it:
neither time that passes, nor a machine that sleeps, nor a broker that is off does. So it is kept on disk together with
the name of this run of the machine, and a leap shows even where the broker was not running when it came.
"""

import msgspec

from latermq.clock import Clock
from latermq.errors import CorruptStore, StoreError
from latermq.handover.checked_file import decode_checked, encode_checked
from latermq.store.files.disk import Disk

HOLD_S = 60.0
PATH = "latermq.clock"
SMALL_STEP_MS = 60_000  # so little is not written down
_SAVE_AGAIN_S = 1.0


class Hold(msgspec.Struct, frozen=True):
    """A leap that is not believed yet."""

    leap_ms: int
    wall_ms: int  # what the clock said when the hold began,
    boot_ms: int  # and how long the machine had been up


class Belief(msgspec.Struct, frozen=True):
    """What is kept on disk."""

    boot_id: str
    offset_ms: int  # wall clock less uptime, as it is believed
    hold: Hold | None = None


class ClockGuard:
    """Says what time it is for deliveries, or that it is too early to say."""

    def __init__(self, clock: Clock, max_step_ms: int, disk: Disk) -> None:
        self._clock = clock
        self._max_step_ms = max_step_ms
        self._disk = disk
        self._boot_id = clock.boot_id()
        self._saved = _load(disk)
        self._save_at_s = 0.0
        now_ms, boot_ms = self._look()
        self._offset_ms = now_ms - boot_ms
        self._hold: Hold | None = None
        self.alarm = ""
        if self._saved is not None:
            self._go_on_from(self._saved, now_ms, boot_ms)

    def _look(self) -> tuple[int, int]:
        return self._clock.now_ms(), round(self._clock.boot_s() * 1000)

    def _go_on_from(self, saved: Belief, now_ms: int, boot_ms: int) -> None:
        """Hold at once if the clock has leapt since this was saved, or if an earlier hold is not over."""
        hold = saved.hold
        if saved.boot_id == self._boot_id and self._boot_id:
            self._offset_ms = saved.offset_ms
            leap_ms = now_ms - boot_ms - saved.offset_ms
            if leap_ms > self._max_step_ms:
                self._begin(hold or Hold(leap_ms, now_ms, boot_ms))
        elif hold is not None and abs(now_ms - hold.wall_ms) <= self._max_step_ms:
            # The machine was started again: only the wall clock tells how long ago the hold began.
            ago_ms = max(0, now_ms - hold.wall_ms)
            self._offset_ms = now_ms - boot_ms - hold.leap_ms
            self._begin(Hold(hold.leap_ms, now_ms - ago_ms, boot_ms - ago_ms))

    def _begin(self, hold: Hold) -> None:
        self._hold = hold
        self.alarm = (
            f"the clock leapt forward by {hold.leap_ms / 1000:.0f} s; deliveries are held for {HOLD_S:.0f} s "
            "in case it is set right again"
        )

    def wall_ms(self) -> int:
        """What the clock says, believed or not."""
        return self._clock.now_ms()

    def now_ms(self) -> int | None:
        """The time to deliver by; None while a leap is being held."""
        now_ms, boot_ms = self._look()
        leap_ms = now_ms - boot_ms - self._offset_ms
        if self._hold is None and leap_ms > self._max_step_ms:
            self._begin(Hold(leap_ms, now_ms, boot_ms))
        elif self._hold is not None and (
            leap_ms <= self._max_step_ms or boot_ms >= self._hold.boot_ms + round(HOLD_S * 1000)
        ):
            # Set right again, or it stayed: either way this is the time now.
            self._hold = None
            self.alarm = ""
        if self._hold is None:
            self._offset_ms = now_ms - boot_ms
        self._save()
        return now_ms if self._hold is None else None

    def _save(self) -> None:
        """Write down what is believed where that has changed: hardly ever, so whoever delivers can wait for it.

        Nothing is delivered by a time that is not believed, so a hold need not be on disk before anything else is done.
        """
        saved = self._saved
        if (
            saved is not None
            and saved.boot_id == self._boot_id
            and saved.hold == self._hold
            and abs(saved.offset_ms - self._offset_ms) < SMALL_STEP_MS
        ):
            return
        now_s = self._clock.boot_s()
        if now_s < self._save_at_s:
            return
        belief = Belief(self._boot_id, self._offset_ms, self._hold)
        try:
            self._disk.replace(PATH, encode_checked(belief))
        except StoreError:  # no space: the hold goes on in memory, and is written when there is some
            self._save_at_s = now_s + _SAVE_AGAIN_S
            return
        self._saved = belief

    @property
    def is_holding(self) -> bool:
        return self._hold is not None


def _load(disk: Disk) -> Belief | None:
    data = disk.read(PATH)
    if data is None:
        return None
    try:
        return decode_checked(data, Belief, PATH, f"Remove {PATH}: the clock is then believed as it is")
    except CorruptStore:  # it tells of nothing but the clock, for which no start must fail
        return None
