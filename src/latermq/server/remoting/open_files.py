"""What this process may open and map, and how that is shared among connections and files."""

import contextlib
import resource
from pathlib import Path

import msgspec

from latermq.config import MIN_OPEN_QUEUES, Config

# Files of the log and the index, sockets to name servers, the event loop's own: what a process needs besides clients.
SPARE_FILES = 1024
# More is of no use, and programs that are started from here may go through all descriptors that there could be: in
# containers these are a billion at times.
_ENOUGH = 1 << 20
_MAX_MAP_COUNT = Path("/proc/sys/vm/max_map_count")
_DEFAULT_MAP_COUNT = 65_530
_MAPS_A_FILE = 3  # what is read, what is written next and what is not written yet is advised apart


def raise_file_limit() -> int:
    """Raise the limit as far as this process may, and return it.

    Shells begin with 1,024, which is less than the connections that are configured.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return _ENOUGH if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError, ValueError):  # the kernel may allow less than it says; then all stays as it was
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return soft


def allowed_connections(wanted: int, limit: int) -> int:
    """How many of the `wanted` connections a limit of open files leaves room for."""
    return min(wanted, max(limit - SPARE_FILES, limit // 2))


def allowed_queue_files(wanted: int, max_connections: int, limit: int, max_maps: int) -> int:
    """How many of the `wanted` files of queues can be mapped at once.

    They get half of the descriptors that connections leave, and half of the kernel's maps: the log, the index and
    libraries need some too.
    """
    descriptors = (limit - allowed_connections(max_connections, limit)) // 2
    return max(MIN_OPEN_QUEUES, min(wanted, descriptors, max_maps // 2 // _MAPS_A_FILE))


def max_map_count(setting: Path = _MAX_MAP_COUNT) -> int:
    """How many maps the kernel allows a process."""
    try:
        return int(setting.read_text())
    except (OSError, ValueError):
        return _DEFAULT_MAP_COUNT


def within_limits(config: Config, limit: int) -> Config:
    """The configuration with no more mapped files of queues than this process may have, where it may open `limit`."""
    store = config.store
    allowed = allowed_queue_files(store.max_open_queues, config.server.max_connections, limit, max_map_count())
    return msgspec.structs.replace(config, store=msgspec.structs.replace(store, max_open_queues=allowed))
