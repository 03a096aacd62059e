"""What `latermq doctor --data DIR` finds in a stopped store: a start is rehearsed, and nothing is changed by it."""

from pathlib import Path
from typing import TYPE_CHECKING

from latermq.cli.doctor.checks import Check
from latermq.clock import SystemClock
from latermq.config import Config
from latermq.errors import CorruptStore, LaterMQError, StoreError

if TYPE_CHECKING:
    from latermq.broker.broker import Broker
    from latermq.store.files.disk import Disk

_SIGNS_OF_A_STORE = ("commitlog", "latermq.storeid", "latermq.checkpoint")
_SHOWN = 3
_RUNNING = Check("store", "ok", "in use by a running broker", "Stop it to have its files checked")


def check_store(data: Path, config: Config) -> list[Check]:
    """What is wrong with the store in this directory; one line where all is well, none where there is no store."""
    if not any((data / name).exists() for name in _SIGNS_OF_A_STORE):
        return []
    from latermq.server.remoting.open_files import raise_file_limit, within_limits
    from latermq.store.files.rehearsal_disk import RehearsalDisk

    config = within_limits(config, raise_file_limit())
    with RehearsalDisk(data) as disk:
        if not _is_stopped(disk):
            return [_RUNNING]
        found = _try_to_rehearse(disk, config)
        # A broker that was started meanwhile has changed files while they were looked at.
        return found if _is_stopped(disk) else [_RUNNING]


def _is_stopped(disk: "Disk") -> bool:
    try:
        disk.lock()
    except StoreError as error:
        return "in use" not in error.message
    disk.unlock()
    return True


def _try_to_rehearse(disk: "Disk", config: Config) -> list[Check]:
    try:
        return _rehearse(disk, config)
    except (CorruptStore, StoreError) as error:
        return [Check("store", "fail", error.message, error.hint)]
    except LaterMQError as error:
        return [Check("store", "fail", f"a start fails: {error.message}", error.hint)]
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
        return [Check("store", "fail", f"its files cannot be read: {what}", "Look at the disk, limits and permissions")]


def _rehearse(disk: "Disk", config: Config) -> list[Check]:
    from latermq.broker.broker import Broker

    broker = Broker(config, disk, SystemClock(), host="127.0.0.1", port=config.server.port, new_store_id="0" * 32)
    try:
        found = _damage(broker, config)
        recovery = broker.store.recovery
        state = "after a crash" if recovery.crashed else "stopped cleanly"
        end = f"the log goes from {broker.store.log.start} to {recovery.log_end}"
        if not found:
            return [Check("store", "ok", f"{state}, {end}")]
        return [Check("store", "warn", f"it starts; {state}, {end}", "See the lines below"), *found]
    finally:
        broker.timers.engine.close()
        broker.far_names.close()


def _damage(broker: "Broker", config: Config) -> list[Check]:
    """What the start had to mend, or cannot decide."""
    recovery = broker.store.recovery
    found: list[Check] = []

    def warn(check: str, what: str, advice: str) -> None:
        found.append(Check(check, "warn", what, advice))

    if not recovery.had_checkpoint:
        warn(
            "checkpoint",
            "there is none of LaterMQ's",
            "Nothing to do: the next start goes by the log. Apache RocketMQ's stores never have one",
        )
    for trouble in broker.troubles:
        # This start was a rehearsal: the next one sets the file aside.
        advice = "The next start sets it aside and goes by what it understands; repair it before, if you can"
        warn(trouble.path, trouble.reason, advice if trouble.kept_as else trouble.advice)
    if recovery.rebuilt:
        more = f" and {len(recovery.rebuilt) - _SHOWN} more" if len(recovery.rebuilt) > _SHOWN else ""
        warn(
            "derived files",
            f"lost or damaged: {'; '.join(recovery.rebuilt[:_SHOWN])}{more}",
            "Nothing to do: the next start builds them again from the log",
        )
    if not broker.has_whole_engine and broker.store.waiting.recovered_marks is not None:
        warn(
            "timers' engine",
            f"the files of engine {config.timer.engine} do not hold what the checkpoint says",
            "Nothing to do: the next start fills it again from the timer topic",
        )
    queues, max_queues = broker.store.statistics()["queues"], config.store.max_queues
    if queues > max_queues:
        warn(
            "queues",
            f"{queues}, store.max_queues is {max_queues}",
            "They go on, but no new one is made: raise store.max_queues or delete topics that nobody uses",
        )
    if broker.adopted_topics:
        warn(
            "topics",
            f"messages without a topic in topics.json: {', '.join(broker.adopted_topics[:_SHOWN])}",
            "The next start makes these topics again; set their queues and permissions anew",
        )
    if broker.clamped_offsets:
        warn(
            "consumer offsets",
            f"{broker.clamped_offsets} lie behind the end of their queues",
            "Nothing to do: the next start brings them back to the end",
        )
    if broker.timers.guard.is_holding:
        warn("clock", "the clock has leapt and is not believed yet", "Set it right before the next start")
    return found
