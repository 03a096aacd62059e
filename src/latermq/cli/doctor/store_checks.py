"""Checks of `latermq doctor --data DIR`: rehearses the start of a stopped store without changing it."""

from pathlib import Path
from typing import TYPE_CHECKING

from latermq.cli.doctor.checks import Check
from latermq.clock import SystemClock
from latermq.config import Config
from latermq.errors import CorruptStore, LaterMQError, StoreError

if TYPE_CHECKING:
    from latermq.broker.broker import Broker
    from latermq.store.files.disk import Disk

_STORE_FILES = ("commitlog", "latermq.storeid", "latermq.checkpoint")
_MAX_NAMES = 3
_RUNNING = Check("store", "ok", "in use by a running broker", "Stop the broker to check its files")


def check_store(data: Path, config: Config) -> list[Check]:
    """Problems of the store in this directory: one ok line if there are none, no line if there is no store."""
    if not any((data / name).exists() for name in _STORE_FILES):
        return []
    from latermq.server.remoting.open_files import raise_file_limit, within_limits
    from latermq.store.files.rehearsal_disk import RehearsalDisk

    config = within_limits(config, raise_file_limit())
    with RehearsalDisk(data) as disk:
        if not _is_stopped(disk):
            return [_RUNNING]
        checks = _try_to_rehearse(disk, config)
        # A broker that started in the meantime changed the files during the check.
        return checks if _is_stopped(disk) else [_RUNNING]


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
        return [Check("store", "fail", f"cannot start: {error.message}", error.hint)]
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
        return [
            Check("store", "fail", f"cannot read files: {reason}", "Check the disk, the limits and the permissions")
        ]


def _rehearse(disk: "Disk", config: Config) -> list[Check]:
    from latermq.broker.broker import Broker

    broker = Broker(config, disk, SystemClock(), host="127.0.0.1", port=config.server.port, new_store_id="0" * 32)
    try:
        problems = _problems(broker, config)
        recovery = broker.store.recovery
        state = "after a crash" if recovery.crashed else "stopped cleanly"
        end = f"log offsets {broker.store.log.start} to {recovery.log_end}"
        held = _messages_in_flight(broker)
        if not problems:
            return [Check("store", "ok", f"{state}, {end}"), *held]
        return [Check("store", "warn", f"can start; {state}, {end}", "See the lines below"), *held, *problems]
    finally:
        broker.timers.engine.close()
        broker.far_names.close()


def _messages_in_flight(broker: "Broker") -> list[Check]:
    """What only LaterMQ knows about groups that pop. There is no line if there are none."""
    held = broker.in_flight.held
    if not held:
        return []
    return [
        Check(
            "messages in flight",
            "ok",
            f"{held} of groups that pop",
            "Before Apache's broker opens this store, let their consumers finish: it delivers all messages from the "
            "groups' offsets on again",
        )
    ]


def _problems(broker: "Broker", config: Config) -> list[Check]:
    """Damage that the start repairs, and problems that it cannot resolve."""
    recovery = broker.store.recovery
    problems: list[Check] = []

    def warn(check: str, details: str, advice: str) -> None:
        problems.append(Check(check, "warn", details, advice))

    if not recovery.had_checkpoint:
        warn(
            "checkpoint",
            "no LaterMQ checkpoint",
            "Nothing to do: the next start reads the log instead. Apache RocketMQ stores never have one",
        )
    for trouble in broker.troubles:
        # The rehearsal changed nothing: only a real start sets the file aside.
        advice = "The next start sets it aside and uses the readable part; repair it first if possible"
        warn(trouble.path, trouble.reason, advice if trouble.kept_as else trouble.advice)
    if recovery.rebuilt:
        more = f" and {len(recovery.rebuilt) - _MAX_NAMES} more" if len(recovery.rebuilt) > _MAX_NAMES else ""
        warn(
            "derived files",
            f"lost or damaged: {'; '.join(recovery.rebuilt[:_MAX_NAMES])}{more}",
            "Nothing to do: the next start rebuilds them from the log",
        )
    if not broker.has_whole_engine and broker.store.waiting.recovered_marks is not None:
        warn(
            "timer engine",
            f"the files of engine {config.timer.engine} do not match the checkpoint",
            "Nothing to do: the next start rebuilds it from the timer topic",
        )
    queues, max_queues = broker.store.statistics()["queues"], config.store.max_queues
    if queues > max_queues:
        warn(
            "queues",
            f"{queues}, store.max_queues is {max_queues}",
            "Existing queues work, but no new one can be created: raise store.max_queues or delete unused topics",
        )
    if broker.adopted_topics:
        warn(
            "topics",
            f"missing from topics.json: {', '.join(broker.adopted_topics[:_MAX_NAMES])}",
            "The next start recreates these topics; set their queues and permissions again",
        )
    if broker.clamped_offsets:
        warn(
            "consumer offsets",
            f"{broker.clamped_offsets} are past the end of their queues",
            "Nothing to do: the next start resets them to the end",
        )
    if broker.pop_takeover.trouble:
        warn(
            "popped messages",
            broker.pop_takeover.trouble,
            "Messages in flight may be missing: reset the offsets of groups that pop, after the next start",
        )
    if broker.timers.guard.is_holding:
        warn("clock", "the clock has jumped and is not trusted yet", "Correct it before the next start")
    return problems
