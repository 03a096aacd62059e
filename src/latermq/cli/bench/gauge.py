"""Measures a benchmark run: time, CPU time of the client, and CPU time of a broker on the same machine."""

import ipaddress
import socket
import time
from array import array
from typing import Any

import numpy as np

from latermq.cli.bench.process_usage import cpu_s, listener_pid, memory
from latermq.client import Admin

Figures = dict[str, Any]


class Gauge:
    """Reads time and CPU time when created, and again when `figures` is called."""

    def __init__(self, broker_pid: int | None) -> None:
        self._broker_pid = broker_pid
        self._broker_cpu_s = cpu_s(broker_pid) if broker_pid is not None else None
        self._client_cpu_s = time.process_time()
        self.started_s = time.perf_counter()

    def figures(self, messages: int) -> Figures:
        """Cost of the run per message. The broker's figures are None if its process is not visible."""
        took_s = time.perf_counter() - self.started_s
        client_cpu_s = time.process_time() - self._client_cpu_s
        per_message = max(1, messages)
        figures: Figures = {
            "messages": messages,
            "seconds": round(took_s, 3),
            "messages_per_s": round(messages / took_s),
            "client_cpu_us_per_message": round(client_cpu_s * 1e6 / per_message, 2),
            "broker_cpu_us_per_message": None,
            "broker_pid": self._broker_pid,
            "broker_resident_mib": None,
        }
        if self._broker_pid is not None and self._broker_cpu_s is not None:
            broker_cpu_s = cpu_s(self._broker_pid)
            if broker_cpu_s is not None:
                used_s = broker_cpu_s - self._broker_cpu_s
                figures["broker_cpu_us_per_message"] = round(used_s * 1e6 / per_message, 2)
            usage = memory(self._broker_pid)
            figures["broker_resident_mib"] = usage.resident_bytes >> 20 if usage else None
        return figures


def latency_figures(latencies_s: "array[float]") -> Figures:
    """Percentiles in milliseconds."""
    if not latencies_s:
        return {}
    p50, p99, highest = np.percentile(np.frombuffer(latencies_s, np.float32), (50, 99, 100)) * 1000
    return {
        "latency_p50_ms": round(float(p50), 3),
        "latency_p99_ms": round(float(p99), 3),
        "latency_max_ms": round(float(highest), 3),
    }


async def find_broker_pid(namesrv: str) -> int | None:
    """The process of the cluster's only broker, if it runs on this machine and is visible to this user."""
    async with Admin(namesrv) as admin:
        brokers = await admin.brokers()
    addresses = {address for broker in brokers for address in broker.brokerAddrs.values()}
    if len(addresses) != 1:
        return None
    host, _, port = addresses.pop().rpartition(":")
    return listener_pid(int(port)) if _is_local(host) else None


def _is_local(host: str) -> bool:
    """Whether an address belongs to this machine: only then can a socket be bound to it."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((host, 0))
    except (OSError, ValueError):
        return False
    return True
