"""The Java 4.x client's pop mode, alone and beside pulls in one group, while the broker is killed under load."""

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.programs import Json, Program, ProgramError, start_java
from tests.interop.target import IS_APACHE
from tests.interop.waiting import wait_until
from tests.support.serving import Server, serving

pytestmark = pytest.mark.skipif(IS_APACHE, reason="it kills processes of `latermq serve`")

TOPIC, GROUP = "killed_topic", "killed_group"
INVISIBLE_MS = 5_000
ROUNDS = 12
KILLS = (3, 7)
A_ROUND = 50


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "data", "--no-http", "--no-grpc", "--no-pipeline") as running:
        yield running


def send_some(java: Program, first: int, kill: Callable[[], None] | None = None) -> int:
    """Send messages, again where a broker that is down refused them. Return how many there are."""
    deadline_s = time.monotonic() + 60
    while True:
        request = java.begin("send", topic=TOPIC, first=first, count=A_ROUND, mode="selector", group="killed_producers")
        if kill is not None:
            time.sleep(0.05)
            kill()
            kill = None
        try:
            java.finish(request, what="send")
        except ProgramError:
            assert time.monotonic() < deadline_s, "sends fail for a minute"
            time.sleep(0.5)
        else:
            return A_ROUND


def run_load(server: Server, sender: Program, consumers: dict[str, Program]) -> tuple[set[str], list[Json]]:
    """Send rounds of messages with kills in between. Return the bodies that were sent, and all that was received."""

    def kill() -> None:
        os.kill(server.broker_pid(), signal.SIGKILL)

    sent = 0
    for number in range(ROUNDS):
        sent += send_some(sender, sent, kill if number in KILLS else None)
        time.sleep(0.1)
    bodies = {f"m-{number}" for number in range(sent)}

    def received() -> list[Json]:
        return [one for name, program in consumers.items() for one in program.messages(name)]

    wait_until(lambda: len({one["body"] for one in received()}) >= sent, 120, f"{sent} messages arrive")
    time.sleep(INVISIBLE_MS / 1000 + 2)  # whatever is not acknowledged comes again now
    return bodies, received()


def test_pop_consumers_lose_nothing_when_the_broker_is_killed(server: Server, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        programs = [
            stack.enter_context(start_java(tmp_path / f"java{n}.log", {"namesrv": server.namesrv})) for n in range(3)
        ]
        programs[0].call("make_topics", topics=[TOPIC], queues=4)
        programs[0].call("set_mode", topic=TOPIC, group=GROUP, mode="POP")
        consumers = {"pop1": programs[1], "pop2": programs[2]}
        for name, program in consumers.items():
            program.call(
                "start_consumer", name=name, topic=TOPIC, group=GROUP, server_rebalance=True, invisible_ms=INVISIBLE_MS
            )
        bodies, received = run_load(server, programs[0], consumers)
        assert {one["body"] for one in received} == bodies
        first_deliveries = Counter((one["queue"], one["queue_offset"]) for one in received if one["reconsumed"] == 0)
        # A message comes twice only if its acknowledgement was lost with the broker: then it counts as a retry.
        assert set(first_deliveries.values()) == {1}
        repeated = len(received) - len({(one["queue"], one["queue_offset"], one["reconsumed"]) for one in received})
        assert repeated == 0
        print(
            f"{len(bodies)} messages, {len(received)} deliveries, {sum(first_deliveries.values())} of them first ones"
        )


def test_a_group_that_pulls_and_pops_loses_nothing_when_the_broker_is_killed(server: Server, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        programs = [
            stack.enter_context(start_java(tmp_path / f"java{n}.log", {"namesrv": server.namesrv})) for n in range(3)
        ]
        programs[0].call("make_topics", topics=[TOPIC, f"%RETRY%{GROUP}"], queues=4)
        programs[0].call("set_mode", topic=TOPIC, group=GROUP, mode="POP")
        consumers = {"pull": programs[1], "pop": programs[2]}
        for name, program in consumers.items():
            is_pop = name == "pop"
            program.call(
                "start_consumer", name=name, topic=TOPIC, group=GROUP, server_rebalance=is_pop,
                invisible_ms=INVISIBLE_MS,
            )  # fmt: skip
        bodies, received = run_load(server, programs[0], consumers)
        assert {one["body"] for one in received} == bodies
        twice = len(received) - len({(one["body"], one["reconsumed"]) for one in received})
        print(f"{len(bodies)} messages, {len(received)} deliveries, {twice} of them repeated by pulls")
        assert programs[1].messages("pull")
        assert programs[2].messages("pop")
