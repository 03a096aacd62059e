"""The clock guard: a clock set back delivers nothing early, and a large jump forward is not trusted at once.

The guard tracks the offset between the wall clock and the machine's uptime. Only setting the clock changes this offset.
Passing time, a suspended machine or a stopped broker do not. The offset is kept on disk with the machine's boot id, so
the guard detects a jump even if the broker was not running when it happened.
"""

import msgspec

from latermq.clock import Clock
from latermq.errors import CorruptStore, StoreError
from latermq.handover.checked_file import decode_checked, encode_checked
from latermq.store.files.disk import Disk

HOLD_S = 60.0
PATH = "latermq.clock"
SMALL_STEP_MS = 60_000  # smaller steps are not saved
_SAVE_AGAIN_S = 1.0


class Hold(msgspec.Struct, frozen=True):
    """A jump that is not trusted yet."""

    leap_ms: int
    wall_ms: int  # wall clock when the hold began
    boot_ms: int  # uptime when the hold began


class ClockState(msgspec.Struct, frozen=True):
    """The state on disk."""

    boot_id: str
    offset_ms: int  # trusted offset: wall clock minus uptime
    hold: Hold | None = None


class ClockGuard:
    """Provides the time for deliveries, or None while the time is uncertain."""

    def __init__(self, clock: Clock, max_step_ms: int, disk: Disk) -> None:
        self._clock = clock
        self._max_step_ms = max_step_ms
        self._disk = disk
        self._boot_id = clock.boot_id()
        self._saved = _load(disk)
        self._save_at_s = 0.0
        now_ms, boot_ms = self._read_clocks()
        self._offset_ms = now_ms - boot_ms
        self._hold: Hold | None = None
        self.alarm = ""
        if self._saved is not None:
            self._resume_from(self._saved, now_ms, boot_ms)

    def _read_clocks(self) -> tuple[int, int]:
        return self._clock.now_ms(), round(self._clock.boot_s() * 1000)

    def _resume_from(self, saved: ClockState, now_ms: int, boot_ms: int) -> None:
        """Hold at once if the clock has jumped since the state was saved, or if an earlier hold is not over."""
        hold = saved.hold
        if saved.boot_id == self._boot_id and self._boot_id:
            self._offset_ms = saved.offset_ms
            leap_ms = now_ms - boot_ms - saved.offset_ms
            if leap_ms > self._max_step_ms:
                self._begin(hold or Hold(leap_ms, now_ms, boot_ms))
        elif hold is not None and abs(now_ms - hold.wall_ms) <= self._max_step_ms:
            # The machine was rebooted: only the wall clock shows how long ago the hold began.
            ago_ms = max(0, now_ms - hold.wall_ms)
            self._offset_ms = now_ms - boot_ms - hold.leap_ms
            self._begin(Hold(hold.leap_ms, now_ms - ago_ms, boot_ms - ago_ms))

    def _begin(self, hold: Hold) -> None:
        self._hold = hold
        self.alarm = (
            f"the clock jumped forward by {hold.leap_ms / 1000:.0f} s; delivery is held for {HOLD_S:.0f} s "
            "in case it is corrected"
        )

    def wall_ms(self) -> int:
        """Return the wall clock, trusted or not."""
        return self._clock.now_ms()

    def now_ms(self) -> int | None:
        """Return the time for deliveries; None while a jump is held."""
        now_ms, boot_ms = self._read_clocks()
        leap_ms = now_ms - boot_ms - self._offset_ms
        if self._hold is None and leap_ms > self._max_step_ms:
            self._begin(Hold(leap_ms, now_ms, boot_ms))
        elif self._hold is not None and (
            leap_ms <= self._max_step_ms or boot_ms >= self._hold.boot_ms + round(HOLD_S * 1000)
        ):
            # The clock was corrected, or the jump persisted. Either way this is the time now.
            self._hold = None
            self.alarm = ""
        if self._hold is None:
            self._offset_ms = now_ms - boot_ms
        self._save()
        return now_ms if self._hold is None else None

    def _save(self) -> None:
        """Save the state if it has changed. That is very rare, so delivery can wait for it.

        Nothing is delivered by an untrusted time, so a hold need not be on disk before other work continues.
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
        state = ClockState(self._boot_id, self._offset_ms, self._hold)
        try:
            self._disk.replace(PATH, encode_checked(state))
        except StoreError:  # disk full: the hold continues in memory and is saved when there is space
            self._save_at_s = now_s + _SAVE_AGAIN_S
            return
        self._saved = state

    @property
    def is_holding(self) -> bool:
        return self._hold is not None


def _load(disk: Disk) -> ClockState | None:
    data = disk.read(PATH)
    if data is None:
        return None
    try:
        return decode_checked(data, ClockState, PATH, f"Remove {PATH}: the broker then trusts the clock")
    except CorruptStore:  # the file concerns only the clock, and a start must not fail because of it
        return None
