"""Clients by network: the counts, and the network that loses a client when the table is full."""

import random
import time
from collections import Counter

from latermq.config import load_config
from latermq.server.proxy.clients.clients import Clients
from latermq.server.proxy.clients.networks import Networks


def test_the_largest_wanted_network_is_that_of_a_look_at_all() -> None:
    rng = random.Random(7)
    networks, counts = Networks(), Counter[str]()
    wanted: set[str] = set()
    for _ in range(20_000):
        name = f"10.0.0.{rng.randrange(40)}"
        if rng.random() < 0.3:
            wanted.discard(name)
        elif rng.random() < 0.5 and counts[name]:
            wanted.add(name)
            networks.note(name)
        elif rng.random() < 0.5:
            networks.add(name)
            counts[name] += 1
        elif counts[name]:
            networks.remove(name)
            counts[name] -= 1
        most = max((counts[one] for one in wanted if counts[one]), default=0)
        found = networks.largest(lambda one: one in wanted)
        assert networks[found] == most
        assert not found or found in wanted
        assert networks.highest() == max(counts.values())


def cpu_s(networks: int) -> float:
    """Return what 300 new clients cost when a table is full of clients of this many networks."""
    config = load_config(settings=["proxy.max_clients=20000"], environment={}).proxy
    clients = Clients(config, lambda: 0.0)
    for number in range(20_000):
        at = number % networks
        clients.see(f"old-{number}", "g", f"10.0.{at >> 8}.{at & 255}")
    start_s = time.process_time()
    for number in range(300):
        clients.see(f"new-{number}", "g", "10.1.0.1")
    return time.process_time() - start_s


def test_a_new_client_costs_the_same_however_many_networks_have_clients() -> None:
    assert min(cpu_s(20_000), cpu_s(20_000)) < 20 * max(cpu_s(10), 0.001)
