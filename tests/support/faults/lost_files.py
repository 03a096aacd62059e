"""What a store can lose and build again: any one file or folder that is derived from its log."""

from random import Random

from latermq.store.files.memory_disk import MemoryDisk

# Everything that a start builds again. Not among them: commitlog/, config/topics.json, subscriptionGroup.json and
# consumerOffset.json, latermq.storeid, latermq.rollwindow, latermq.importedtimers, latermq.ingest, and timerfarnames/
# with latermq.farnames, which hold names whose records have left the log.
DERIVED = (
    "consumequeue", "index", "latermq.checkpoint", "timerwheel", "timerlog", "timerrocksdb", "config/delayOffset.json",
    "config/timercheck", "checkpoint", "latermq.windows",
)  # fmt: skip


def lose_one(disk: MemoryDisk, chance: Random) -> str:
    """Lose something derived, or one file of it; what it was."""
    path = chance.choice(DERIVED)
    while chance.random() < 0.8 and path != "timerrocksdb" and disk.calls.is_folder(path):
        names = disk.list_names(path)
        if not names:
            break
        path = f"{path}/{chance.choice(names)}"
    disk.remove(path)
    return path
