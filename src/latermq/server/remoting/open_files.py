"""The limits of open files and memory maps of this process, and how connections and files share them."""

import contextlib
import resource
from pathlib import Path

import msgspec

from latermq.config import MIN_OPEN_QUEUES, Config

# Descriptors for everything but clients: files of the log and the index, sockets to name servers, the event loop.
SPARE_FILES = 1024
# A higher limit is useless, and child processes may iterate over all possible descriptors. Containers sometimes allow
# a billion.
_MAX_FILE_LIMIT = 1 << 20
_MAX_MAP_COUNT = Path("/proc/sys/vm/max_map_count")
_DEFAULT_MAP_COUNT = 65_530
_MAPS_PER_FILE = 3  # madvise splits a file's map: read part, part written next, unwritten part


def raise_file_limit() -> int:
    """Raise the open-file limit as far as this process may, and return it.

    Shells start with 1,024, which is less than the configured number of connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_FILE_LIMIT if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILE_LIMIT)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return _MAX_FILE_LIMIT if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError, ValueError):  # the kernel may allow less than it reports; the limit then stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return soft


def allowed_connections(wanted: int, limit: int) -> int:
    """Return how many of the `wanted` connections an open-file limit allows."""
    return min(wanted, max(limit - SPARE_FILES, limit // 2))


def allowed_queue_files(wanted: int, max_connections: int, limit: int, max_maps: int) -> int:
    """Return how many of the `wanted` queue files can be mapped at the same time.

    They get half of the descriptors that connections leave free, and half of the memory maps that the kernel allows.
    The log, the index and libraries need the rest.
    """
    descriptors = (limit - allowed_connections(max_connections, limit)) // 2
    return max(MIN_OPEN_QUEUES, min(wanted, descriptors, max_maps // 2 // _MAPS_PER_FILE))


def max_map_count(setting: Path = _MAX_MAP_COUNT) -> int:
    """Return how many memory maps the kernel allows per process."""
    try:
        return int(setting.read_text())
    except (OSError, ValueError):
        return _DEFAULT_MAP_COUNT


def within_limits(config: Config, limit: int) -> Config:
    """Return the configuration with `max_open_queues` reduced to what this process can map if it may open `limit`."""
    store = config.store
    allowed = allowed_queue_files(store.max_open_queues, config.server.max_connections, limit, max_map_count())
    return msgspec.structs.replace(config, store=msgspec.structs.replace(store, max_open_queues=allowed))
