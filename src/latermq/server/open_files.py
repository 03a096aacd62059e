"""The limit of open files: every connection takes one, and every mapped file of a store."""

import contextlib
import resource

# More is of no use, and programs that are started from here may go through all descriptors that there could be: in
# containers these are a billion at times.
_ENOUGH = 1 << 20


def raise_file_limit() -> int:
    """Raise the limit as far as this process may, and return it.

    A store is opened before anybody connects, and may have more queues than the limit that shells begin with (1,024).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return _ENOUGH if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError, ValueError):  # the kernel may allow less than it says; then all stays as it was
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return soft
