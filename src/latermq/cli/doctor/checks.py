"""Checks of `latermq doctor`. Each returns a status, details, and advice if something is wrong."""

import ctypes
import errno
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Literal

import msgspec

from latermq.config import AccessConfig, Config

JAVA_MIN = 17  # required by Spark 4
PYTHON_MIN = (3, 11)

SPARE_FILES = 1024  # for the store and the event loop, in addition to one per connection
_MAX_MAP_COUNT_MIN = 65_530  # Linux default; segments and open queue files are memory maps
_CLOCK_WATCH_S = 0.1
_CLOCK_TOLERANCE_S = 0.02
_EARLIEST_PLAUSIBLE_S = 1_735_689_600  # 2025-01-01: an earlier clock is not set


class Check(msgspec.Struct, frozen=True):
    """Result of one check."""

    check: str
    status: Literal["ok", "warn", "fail"]
    details: str
    advice: str = ""


def check_python(prefix: str = sys.base_prefix, options: str = sysconfig.get_config_var("CONFIG_ARGS") or "") -> Check:
    """Check the version of Python, and how it was built: distributions have optimised builds of their own."""
    details = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < PYTHON_MIN:
        return Check("Python", "fail", details, f"Install Python {'.'.join(map(str, PYTHON_MIN))} or newer")
    if prefix != "/usr" and "--enable-optimizations" not in options:
        advice = "The Python of the distribution, or of uv, takes a tenth less CPU time"
        return Check("Python", "warn", f"{details}, built without --enable-optimizations", advice)
    return Check("Python", "ok", details)


def check_java() -> Check:
    home = os.environ.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else "java"
    advice = f"Only needed for the Spark pipeline: install Java {JAVA_MIN} or newer, or set JAVA_HOME"
    try:
        process = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Check("Java", "warn", f"{program} not found", advice)
    # `openjdk version "17.0.15"`; before 9 it was `"1.8.0"`.
    match = re.search(r'version "(?:1\.)?(\d+)[^"]*"', process.stderr + process.stdout)
    if match is None:
        return Check("Java", "warn", f"{program} does not report its version", advice)
    return Check("Java", "ok" if int(match[1]) >= JAVA_MIN else "warn", match[0], advice * (int(match[1]) < JAVA_MIN))


def check_port(name: str, host: str, port: int, option: str) -> Check:
    check = f"{name} port"
    where = f"{host}:{port}"
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                advice = (
                    f"Unless it is a running LaterMQ server, stop that process or choose another port with {option}"
                )
                return Check(check, "warn", f"{where} is in use", advice)
            return Check(
                check, "fail", f"{where}: {error.strerror}", f"Choose another address with --host and {option}"
            )
    return Check(check, "ok", f"{where} is free")


def check_file_limit(config: Config) -> Check:
    # Only the hard limit matters: server processes raise their soft limit.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = config.server.max_connections + SPARE_FILES
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return Check("open files", "ok", "unlimited" if hard == resource.RLIM_INFINITY else f"{hard} allowed")
    advice = f"Raise the hard limit to {needed} (ulimit -Hn, LimitNOFILE= in systemd) or lower server.max_connections"
    return Check("open files", "warn", f"{hard} allowed, server.max_connections needs {needed}", advice)


def check_open_queues(config: Config) -> Check:
    """How many queues can have their files open at the same time."""
    from latermq.server.remoting.open_files import allowed_queue_files, max_map_count

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    max_maps, wanted = max_map_count(), config.store.max_open_queues
    allowed = allowed_queue_files(wanted, config.server.max_connections, limit, max_maps)
    details = f"up to {allowed} can be open at once"
    if allowed >= min(wanted, config.broker.max_topic_queues):  # enough for the widest topic
        return Check("queues", "ok", details)
    advice = (
        "Only needed for more busy queues: raise the hard limit of open files (ulimit -Hn, LimitNOFILE= in systemd) "
        "and vm.max_map_count, or lower store.max_open_queues"
    )
    return Check("queues", "warn", f"{details}: limits are {limit} open files and {max_maps} memory maps", advice)


def check_data_dir(data: Path) -> Check:
    from latermq.server.private_files import is_open

    existing = _nearest_existing_path(data)
    if not existing.is_dir():
        return Check("data directory", "fail", f"{existing} is not a directory", "Choose another one with --data")
    if not os.access(existing, os.W_OK | os.X_OK):
        return Check("data directory", "fail", f"{existing} is not writable", f"Grant uid {os.getuid()} write access")
    if is_open(data):
        advice = "Nothing to do: the next start removes their access"
        return Check("data directory", "warn", f"{data} can be read by other users", advice)
    return Check("data directory", "ok", f"{data}" if existing == data else f"{data} will be created")


def check_network(host: str, access: AccessConfig) -> Check:
    """Whether other machines can use the server without a user."""
    from latermq.addresses import is_loopback
    from latermq.server.reachability import HINT, is_exposed

    if not is_exposed(access, host):
        if not is_loopback(host):
            return Check("network", "ok", f"other machines can reach {host or 'every address'}, and users are checked")
        return Check("network", "ok", f"{host} is reachable only from this machine")
    return Check("network", "warn", f"other machines can reach {host or 'every address'}", HINT)


def check_disk_space(data: Path, config: Config) -> Check:
    usage = shutil.disk_usage(_nearest_existing_path(data))
    used = 1 - usage.free / (usage.used + usage.free)
    details = f"{used:.0%} used, {usage.free / (1 << 30):.1f} GiB free"
    if used > config.store.disk_high:
        advice = (
            f"Above {config.store.disk_high:.0%} new messages are refused and the oldest segments deleted: "
            "free disk space, shorten store.retention or raise store.disk_high"
        )
        return Check("disk space", "fail", details, advice)
    if usage.free < 2 * config.store.segment:
        advice = "Not enough for two log segments: free disk space, shorten store.retention or lower store.segment"
        return Check("disk space", "warn", details, advice)
    return Check("disk space", "ok", details)


def check_fallocate(data: Path) -> Check:
    existing = _nearest_existing_path(data)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            # Call fallocate directly: posix_fallocate falls back to writing zeros.
            size = ctypes.c_int64(1 << 20)
            failed = libc.fallocate(file.fileno(), 0, ctypes.c_int64(0), size) != 0
            error = ctypes.get_errno()
    except OSError as unwritable:
        return Check("fallocate", "fail", f"cannot create a file in {existing}: {unwritable.strerror}", "See above")
    if failed:
        advice = "The broker reserves disk space by writing zeros, which doubles the work; use ext4 or xfs"
        return Check("fallocate", "warn", f"{existing}: {os.strerror(error)}", advice)
    return Check("fallocate", "ok", "supported")


def check_clock() -> Check:
    wall_s, monotonic_s = time.time(), time.monotonic()
    time.sleep(_CLOCK_WATCH_S)
    drift_s = abs((time.time() - wall_s) - (time.monotonic() - monotonic_s))
    details = time.strftime("%Y-%m-%d %H:%M:%S %Z (UTC%z)")
    if wall_s < _EARLIEST_PLAUSIBLE_S:
        return Check("clock", "fail", details, "The clock is not set: set it and run an NTP service")
    if drift_s > _CLOCK_TOLERANCE_S:
        advice = "Check the NTP service: the wall clock drifts from the monotonic clock, and a step affects due times"
        return Check(
            "clock", "warn", f"{details}, {drift_s * 1000:.0f} ms drift in {_CLOCK_WATCH_S * 1000:.0f} ms", advice
        )
    return Check("clock", "ok", details)


def check_huge_pages(setting: Path = Path("/sys/kernel/mm/transparent_hugepage/enabled")) -> Check:
    match = re.search(r"\[(\w+)\]", _read(setting))
    if match is None:
        return Check("transparent huge pages", "ok", "not supported by this kernel")
    if match[1] == "always":
        advice = f"For steadier memory use and latency: echo madvise > {setting}"
        return Check("transparent huge pages", "warn", "always", advice)
    return Check("transparent huge pages", "ok", match[1])


def check_map_count(setting: Path = Path("/proc/sys/vm/max_map_count")) -> Check:
    text = _read(setting).strip()
    if not text.isdigit():
        return Check("vm.max_map_count", "ok", "not supported by this kernel")
    if int(text) < _MAX_MAP_COUNT_MIN:
        advice = (
            f"For many topics: sysctl -w vm.max_map_count={_MAX_MAP_COUNT_MIN} or more (one memory map per busy queue)"
        )
        return Check("vm.max_map_count", "warn", text, advice)
    return Check("vm.max_map_count", "ok", text)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _nearest_existing_path(path: Path) -> Path:
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def check_name_server(address: str, *, required: bool) -> Check:
    from latermq.cli.event_loop import run
    from latermq.client import Admin
    from latermq.errors import LaterMQError

    async def broker_names() -> list[str]:
        async with Admin(address, request_timeout_s=3.0) as admin:
            return [name for brokers in (await admin.clusters()).values() for name in brokers]

    try:
        brokers = run(broker_names())
    except LaterMQError as error:
        if required:
            advice = "Start `latermq serve`, or choose another name server with --namesrv"
            return Check("name server", "fail", error.message, advice)
        return Check("name server", "warn", f"not running at {address}", "Expected unless `latermq serve` is running")
    if not brokers:
        return Check("name server", "warn", f"{address} has no brokers", "Start `latermq broker --namesrv ...`")
    return Check("name server", "ok", f"{address} with {', '.join(sorted(brokers))}")
