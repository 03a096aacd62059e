"""The checks of `latermq doctor`: each looks at one thing and says ok, warn or fail, what it found and what to do."""

import ctypes
import errno
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

import msgspec

from latermq.config import Config

JAVA_MIN = 17  # what Spark 4 asks for
PYTHON_MIN = (3, 11)

SPARE_FILES = 1024  # the store's and the loop's own, besides one for each connection
_MAX_MAP_COUNT_MIN = 65_530  # Linux' default; segments and open files of queues are maps
_CLOCK_WATCH_S = 0.1
_CLOCK_TOLERANCE_S = 0.02
_EARLIEST_PLAUSIBLE_S = 1_735_689_600  # 2025-01-01: a machine before it has lost its time


class Check(msgspec.Struct, frozen=True):
    """What one look found."""

    check: str
    status: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


def check_python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < PYTHON_MIN:
        return Check("Python", "fail", found, f"Install Python {'.'.join(map(str, PYTHON_MIN))} or newer")
    return Check("Python", "ok", found)


def check_java() -> Check:
    home = os.environ.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else "java"
    advice = f"Only the Spark pipeline needs it: install Java {JAVA_MIN} or newer, or point JAVA_HOME to one"
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Check("Java", "warn", f"no {program}", advice)
    # `openjdk version "17.0.15"`; before 9 it was `"1.8.0"`.
    match = re.search(r'version "(?:1\.)?(\d+)[^"]*"', answer.stderr + answer.stdout)
    if match is None:
        return Check("Java", "warn", f"{program} does not tell its version", advice)
    return Check("Java", "ok" if int(match[1]) >= JAVA_MIN else "warn", match[0], advice * (int(match[1]) < JAVA_MIN))


def check_port(name: str, host: str, port: int, option: str) -> Check:
    check = f"port of the {name}"
    where = f"{host}:{port}"
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                advice = f"If that is not a LaterMQ you started, stop it or choose another port with {option}"
                return Check(check, "warn", f"{where} is in use", advice)
            return Check(check, "fail", f"{where}: {error.strerror}", f"Choose another with --host and {option}")
    return Check(check, "ok", f"{where} is free")


def check_file_limit(config: Config) -> Check:
    # The soft limit does not matter: server processes raise it themselves.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = config.server.max_connections + SPARE_FILES
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return Check("open files", "ok", "unlimited" if hard == resource.RLIM_INFINITY else f"{hard} allowed")
    advice = f"Raise the hard limit to {needed} (ulimit -Hn, LimitNOFILE= in systemd) or lower server.max_connections"
    return Check("open files", "warn", f"{hard} allowed, {needed} needed for server.max_connections", advice)


def check_open_queues(config: Config) -> Check:
    """How many queues can be busy at once before their files take turns in being open."""
    from latermq.server.remoting.open_files import allowed_queue_files, max_map_count

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    maps, wanted = max_map_count(), config.store.max_open_queues
    allowed = allowed_queue_files(wanted, config.server.max_connections, limit, maps)
    found = f"files of {allowed} can be open at once"
    if allowed >= min(wanted, config.broker.max_topic_queues):  # those of a wide topic
        return Check("queues", "ok", found)
    advice = (
        "Nothing to do for fewer busy queues. For more raise the hard limit of open files (ulimit -Hn, LimitNOFILE= in "
        "systemd) and vm.max_map_count, or lower store.max_open_queues"
    )
    return Check("queues", "warn", f"{found}: {limit} open files and {maps} maps are allowed", advice)


def check_data_dir(data: Path) -> Check:
    from latermq.server.private_files import is_open

    place = _nearest_existing(data)
    if not place.is_dir():
        return Check("data directory", "fail", f"{place} is no directory", "Name another with --data")
    if not os.access(place, os.W_OK | os.X_OK):
        return Check("data directory", "fail", f"{place} is not writable", f"Give uid {os.getuid()} access to it")
    if is_open(data):
        return Check("data directory", "warn", f"{data} can be read by other users", "The next start closes it to them")
    return Check("data directory", "ok", f"{data}" if place == data else f"{data} will be made")


def check_reach(host: str) -> Check:
    """Whether other machines come to a server that asks nobody who they are."""
    from latermq.server.reach import HINT, is_loopback

    if is_loopback(host):
        return Check("network", "ok", f"{host} is reached from this machine alone")
    return Check("network", "warn", f"other machines can reach {host or 'every address'}", HINT)


def check_disk_space(data: Path, config: Config) -> Check:
    usage = shutil.disk_usage(_nearest_existing(data))
    used = 1 - usage.free / (usage.used + usage.free)
    found = f"{used:.0%} used, {usage.free / (1 << 30):.1f} GiB free"
    if used > config.store.disk_high:
        advice = (
            f"Above {config.store.disk_high:.0%} new messages are refused and the oldest segments deleted: "
            "free some, shorten store.retention or raise store.disk_high"
        )
        return Check("disk space", "fail", found, advice)
    if usage.free < 2 * config.store.segment:
        advice = "Less than two log segments are free: free some, shorten store.retention or lower store.segment"
        return Check("disk space", "warn", found, advice)
    return Check("disk space", "ok", found)


def check_fallocate(data: Path) -> Check:
    place = _nearest_existing(data)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            # The system call itself: posix_fallocate would write zeros where the file system cannot reserve.
            size = ctypes.c_int64(1 << 20)
            failed = libc.fallocate(file.fileno(), 0, ctypes.c_int64(0), size) != 0
            error = ctypes.get_errno()
    except OSError as unwritable:
        return Check("fallocate", "fail", f"no file can be made in {place}: {unwritable.strerror}", "See above")
    if failed:
        advice = "Disk space is then reserved by writing zeros, twice the work; use ext4 or xfs for the data directory"
        return Check("fallocate", "warn", f"{place}: {os.strerror(error)}", advice)
    return Check("fallocate", "ok", "disk space can be reserved ahead")


def check_clock() -> Check:
    wall_s, monotonic_s = time.time(), time.monotonic()
    time.sleep(_CLOCK_WATCH_S)
    gap_s = abs((time.time() - wall_s) - (time.monotonic() - monotonic_s))
    found = time.strftime("%Y-%m-%d %H:%M:%S %Z (UTC%z)")
    if wall_s < _EARLIEST_PLAUSIBLE_S:
        return Check("clock", "fail", found, "The machine has lost its time: set it and run an NTP service")
    if gap_s > _CLOCK_TOLERANCE_S:
        advice = "Wall and monotonic clock run apart: look at the NTP service, a step changes when timers are due"
        return Check("clock", "warn", f"{found}, {gap_s * 1000:.0f} ms apart in {_CLOCK_WATCH_S * 1000:.0f} ms", advice)
    return Check("clock", "ok", found)


def check_huge_pages(setting: Path = Path("/sys/kernel/mm/transparent_hugepage/enabled")) -> Check:
    match = re.search(r"\[(\w+)\]", _read(setting))
    if match is None:
        return Check("transparent huge pages", "ok", "not on this kernel")
    if match[1] == "always":
        advice = f"Memory and latency are steadier with: echo madvise > {setting}"
        return Check("transparent huge pages", "warn", "always", advice)
    return Check("transparent huge pages", "ok", match[1])


def check_map_count(setting: Path = Path("/proc/sys/vm/max_map_count")) -> Check:
    text = _read(setting).strip()
    if not text.isdigit():
        return Check("vm.max_map_count", "ok", "not on this kernel")
    if int(text) < _MAX_MAP_COUNT_MIN:
        advice = f"Each busy queue is a map: sysctl -w vm.max_map_count={_MAX_MAP_COUNT_MIN} or more for many topics"
        return Check("vm.max_map_count", "warn", text, advice)
    return Check("vm.max_map_count", "ok", text)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _nearest_existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def check_name_server(address: str, *, required: bool) -> Check:
    from latermq.cli.event_loop import run
    from latermq.client import Admin
    from latermq.errors import LaterMQError

    async def ask() -> list[str]:
        async with Admin(address, request_timeout_s=3.0) as admin:
            return [name for brokers in (await admin.clusters()).values() for name in brokers]

    try:
        brokers = run(ask())
    except LaterMQError as error:
        if required:
            return Check("name server", "fail", error.message, "Start `latermq serve`, or name another with --namesrv")
        return Check("name server", "warn", f"none at {address}", "Nothing to do before `latermq serve` is started")
    if not brokers:
        return Check("name server", "warn", f"{address} knows no broker", "Start `latermq broker --namesrv ...`")
    return Check("name server", "ok", f"{address} knows {', '.join(sorted(brokers))}")
