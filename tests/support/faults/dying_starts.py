"""Starts that die: at some system call of theirs, several in a row, as a process or with the machine."""

from collections.abc import Callable
from random import Random

from latermq.store.files.memory_disk import Died, MemoryDisk


def die_in_start(
    disk: MemoryDisk, start: Callable[[MemoryDisk], object], calls: int, *, half_way: bool
) -> tuple[MemoryDisk, bool]:
    """Let a start make so many system calls, and the process die then: the disk, and whether it was done before."""
    disk.die_after(calls, half_way=half_way)
    try:
        start(disk)
    except Died:
        return disk.after_process_death(), False
    return disk.after_process_death(), True


def after_dying_starts(
    disk: MemoryDisk, start: Callable[[MemoryDisk], object], chance: Random, *, may_lose_unsynced: bool = False
) -> MemoryDisk:
    """What a few starts leave that all died somewhere, `may_lose_unsynced` with the machine at times."""
    for _ in range(chance.randrange(4)):
        calls = chance.randrange(chance.choice((4, 20, 100)))
        disk, _ = die_in_start(disk, start, calls, half_way=chance.random() < 0.5)
        if may_lose_unsynced and chance.random() < 0.5:
            disk = disk.after_machine_death(chance)
    return disk
