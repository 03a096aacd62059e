"""Choice of the engine: opens the configured one and checks that it still holds what the checkpoint promises."""

from latermq.config import TimerConfig
from latermq.store.checkpoint import TimerMarks
from latermq.store.files.disk import Disk
from latermq.timer.engine.interface import Engine
from latermq.timer.engine.rocksdb_engine import RocksEngine
from latermq.timer.engine.wheel_engine import WheelEngine

ROCKSDB_FOLDER = "timerrocksdb"


def open_engine(disk: Disk, config: TimerConfig, marks: TimerMarks | None, *, is_clean: bool) -> tuple[Engine, bool]:
    """Return the engine, and whether it is whole. If not, it must be refilled from the timer topic."""
    # Marks of the other engine say nothing about this one's files, which date from the last switch between engines.
    known = marks if marks is not None and marks.engine == config.engine else None
    mark, from_ms = (known.mark, known.wake_ms) if known else ("", 0)
    engine: WheelEngine | RocksEngine
    if config.engine == "rocksdb":
        engine = RocksEngine(disk.library_folder(ROCKSDB_FOLDER), mark=mark, from_ms=from_ms)
    else:
        engine = WheelEngine(disk, mark=mark, from_ms=from_ms, is_clean=is_clean, file_bytes=int(config.log_file))
    return engine, engine.is_whole and known is not None
