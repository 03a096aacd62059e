"""Loss of a derived file or folder, which a store rebuilds from its log."""

from random import Random

from latermq.store.files.memory_disk import MemoryDisk

# Everything that a start rebuilds. Not included: commitlog/, config/topics.json, subscriptionGroup.json and
# consumerOffset.json, latermq.storeid, latermq.rollwindow, latermq.importedtimers, latermq.ingest, and timerfarnames/
# with latermq.farnames, which contain names whose records are no longer in the log.
DERIVED = (
    "consumequeue", "index", "latermq.checkpoint", "timerwheel", "timerlog", "timerrocksdb", "config/delayOffset.json",
    "config/timercheck", "checkpoint", "latermq.windows",
)  # fmt: skip


def lose_one(disk: MemoryDisk, chance: Random) -> str:
    """Delete a derived folder or one of its files. Return its path."""
    path = chance.choice(DERIVED)
    while chance.random() < 0.8 and path != "timerrocksdb" and disk.calls.is_folder(path):
        names = disk.list_names(path)
        if not names:
            break
        path = f"{path}/{chance.choice(names)}"
    disk.remove(path)
    return path
