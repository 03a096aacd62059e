"""Java 4.x consumers that pull, 4.x consumers that pop and consumers of the 5.x protocol in one group."""

import contextlib
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.interop.clients5 import Client5
from tests.interop.programs import Program, ProgramError, start_java
from tests.interop.target import IS_APACHE
from tests.interop.waiting import wait_until
from tests.support.serving import serving

pytestmark = pytest.mark.skipif(IS_APACHE, reason="Apache's broker gives every message to pulls and to pops")

TOPIC, GROUP, QUEUES = "mixed_topic", "mixed_group", 8
INVISIBLE_MS = 5_000


def test_three_kinds_of_consumers_share_a_group_and_lose_nothing(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path / "data", "--no-http", "--no-pipeline", grpc=True))
        sender, puller, popper = (
            stack.enter_context(start_java(tmp_path / f"{name}.log", {"namesrv": server.namesrv}))
            for name in ("sender", "puller", "popper")
        )
        sender.call("make_topics", topics=[TOPIC], queues=QUEUES)
        sender.call("set_mode", topic=TOPIC, group=GROUP, mode="POP")
        pusher = Client5("java", tmp_path / "pusher.log", server.proxy)
        stack.enter_context(pusher.program)
        push = pusher.push(GROUP, TOPIC)
        start(popper, "pop", server_rebalance=True, invisible_ms=INVISIBLE_MS)

        def member_count() -> int:
            with contextlib.suppress(ProgramError):  # until the retry topic of the group has a route
                return len(sender.call("consumer_ids", group=GROUP)["ids"])
            return 0

        wait_until(lambda: member_count() == 2, 30, "the first two are members")
        # The last one takes only its share of the queues, because it sees the others.
        start(puller, "pull")
        wait_until(lambda: 0 < queue_count(puller) < QUEUES, 30, "the member that pulls has its share")

        def received() -> Counter[str]:
            programs = ((puller, "pull"), (popper, "pop"), (pusher.program, push))
            return Counter(one["body"] for program, name in programs for one in program.messages(name))

        for first in range(0, 400, 40):
            sender.call("send", topic=TOPIC, first=first, count=40, mode="selector")
            time.sleep(0.2)
        wait_until(lambda: len(received()) == 400, 60, "all messages arrive")
        time.sleep(2)
        assert all(program.messages(name) for program, name in ((puller, "pull"), (popper, "pop")))
        assert pusher.program.messages(push)
        assert max(received().values()) == 1

        # One leaves and one dies with what it holds: the member that pulls gets all of the rest.
        pusher.stop(push)
        sender.call("send", topic=TOPIC, first=400, count=100, mode="selector")
        popper.kill()
        sender.call("send", topic=TOPIC, first=500, count=100, mode="selector")
        wait_until(lambda: len(received()) == 600, 90, "all other messages arrive")
        repeated = sum(received().values()) - 600
        print(f"600 messages, {repeated} of them twice: popped by the consumer that was killed, before it acknowledged")
        assert repeated <= 100


def start(program: Program, name: str, **options: object) -> None:
    program.call("start_consumer", name=name, topic=TOPIC, group=GROUP, **options)


def queue_count(program: Program) -> int:
    queues = program.call("assigned", name="pull")["queues"]
    return sum(queue["topic"] == TOPIC for queue in queues)
