"""Starts that crash at some system call, several in a row, alone or together with the machine."""

from collections.abc import Callable
from random import Random

from latermq.store.files.memory_disk import MemoryDisk, SimulatedCrash


def crash_during_start(
    disk: MemoryDisk, start: Callable[[MemoryDisk], object], calls: int, *, halfway: bool
) -> tuple[MemoryDisk, bool]:
    """Crash a start after `calls` system calls. Return the disk, and whether the start completed before."""
    disk.crash_after(calls, halfway=halfway)
    try:
        start(disk)
    except SimulatedCrash:
        return disk.after_process_crash(), False
    return disk.after_process_crash(), True


def after_crashed_starts(
    disk: MemoryDisk, start: Callable[[MemoryDisk], object], chance: Random, *, may_lose_unsynced: bool = False
) -> MemoryDisk:
    """Return the disk after a few crashed starts. With `may_lose_unsynced`, some are power cuts."""
    for _ in range(chance.randrange(4)):
        calls = chance.randrange(chance.choice((4, 20, 100)))
        disk, _ = crash_during_start(disk, start, calls, halfway=chance.random() < 0.5)
        if may_lose_unsynced and chance.random() < 0.5:
            disk = disk.after_machine_crash(chance)
    return disk
