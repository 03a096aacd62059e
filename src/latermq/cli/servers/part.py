"""Runs one server process: its start, its ready line, and startup errors with hints."""

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from latermq.cli.output import print_error
from latermq.errors import LaterMQError

if TYPE_CHECKING:
    from latermq.config import Config

Ready = Callable[[str], None]


def run_part(
    name: str, config: "Config", parent_pid: int | None, run: Callable[[Ready], int], *, host: str = "127.0.0.1"
) -> int:
    """Run one server process until it is stopped. Returns the exit code, 2 if it could not start.

    `host` is the address of a port that needs users.
    """
    from latermq.client.session import credentials
    from latermq.processes import die_with_parent
    from latermq.server.logs import set_up_logs
    from latermq.server.private_files import keep_private
    from latermq.server.reachability import start_reminder
    from latermq.server.supervisor import READY
    from latermq.tls.client import as_variables

    if parent_pid is not None:
        die_with_parent(parent_pid)
    keep_private(config)
    # For the processes that this one starts.
    os.environ.update(as_variables(config.tls) | credentials.as_variables(config.access))
    set_up_logs(config.log, name)
    start_reminder(config.access, name, host)
    was_ready = False

    def ready(text: str) -> None:
        nonlocal was_ready
        was_ready = True
        print(f"{READY}{text}", flush=True)

    try:
        return run(ready)
    except LaterMQError as error:
        if was_ready:
            raise
        print_error(f"the {name} cannot start: {error.message}", error.hint)
        return 2
    except OSError as error:
        if was_ready or error.errno is None:
            raise
        print_error(f"the {name} cannot start: {error.strerror or error}", _hint_for(error))
        return 2


def _hint_for(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "Stop the process that listens there, or choose other ports with --port and --namesrv-port"
        case errno.EADDRNOTAVAIL:
            return "Choose an address of this machine with --host"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "Choose a writable directory with --data, or a port above 1023 with --port"
        case _:
            return "`latermq doctor` checks ports, disk and limits"
