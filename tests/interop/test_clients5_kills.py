"""`kill -9` of the broker and of the proxy while all official clients of the 5.x protocol send, receive and ack."""

import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest

from tests.interop.clients5 import LANGUAGES, Client5
from tests.interop.programs import Json, Program, ProgramError
from tests.interop.target import IS_APACHE, Cluster, running_cluster_with_proxy
from tests.interop.waiting import wait_until

pytestmark = pytest.mark.skipif(IS_APACHE, reason="the processes to kill are LaterMQ's")

# Within this time every client must go on by itself.
OUTAGE_S = 15
# Short enough that what a lost answer took along comes again within the test.
INVISIBLE_S = 10
CHECK_TIMEOUT_S = 45
# These clients renew the stream on which a proxy asks them about transactions only after up to 5 minutes.
SLOW_TO_RENEW = {"go", "python"}
_PAUSE_S = 0.02


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = ("transaction.check_after=3s", "transaction.check_every=3s")
    with running_cluster_with_proxy(tmp_path_factory.mktemp("cluster"), *settings) as running:
        yield running


@dataclass
class Load:
    """One client that sends in some threads, and receives and acks in others, whatever fails.

    Besides it holds messages and opens transactions, which a kill must not end.
    """

    client: Client5
    topic: str
    group: str
    senders: int = 1
    receivers: int = 1
    pause_s: float = _PAUSE_S
    stopped: threading.Event = field(default_factory=threading.Event)
    sent: dict[str, float] = field(default_factory=dict)  # message id → when its send was answered
    received: Counter[str] = field(default_factory=Counter)
    acked: dict[str, float] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    holder: str = ""
    held: Json = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers = itertools.count()
        self._counting = threading.Lock()

    def prepare(self, java: Program) -> None:
        """Make the topics and the group, and start the clients that hold messages and transactions."""
        for topic in (self.topic, self._held_topic):
            java.call("make_topics", topics=[topic], message_type="MIXED")
        java.call("make_group", group=self.group)
        self.holder = self.client.simple(self.group, self._held_topic, await_s=2)
        self.decider = self.client.producer(self._held_topic, checked_as="commit")

    def hold(self) -> None:
        """Receive a message that is held while a process is killed."""
        self.client.send(self.decider, self._held_topic, "held")
        [self.held] = self.client.receive(self.holder)

    def open_transactions(self, *names: str) -> None:
        for name in names:
            self.client.send(self.decider, self._held_topic, name, transaction=f"{self.topic} {name}")

    def commit(self, name: str) -> None:
        self.client.program.call("end_transaction", transaction=f"{self.topic} {name}", resolution="commit")

    @property
    def _held_topic(self) -> str:
        return f"{self.topic}_held"

    def committed(self, awaited: set[str]) -> set[str]:
        """The bodies of transactional messages, each of which may come once."""
        bodies: list[str] = []
        deadline_s = time.monotonic() + CHECK_TIMEOUT_S
        while not awaited <= set(bodies) and time.monotonic() < deadline_s:
            bodies += [message["body"] for message in self.client.receive_once(self.holder, invisible_s=300)]
        assert len(bodies) == len(set(bodies)), f"{self.client.language} got a message twice: {bodies}"
        return set(bodies)

    def start(self) -> list[threading.Thread]:
        self.producer = self.client.producer(self.topic, checked_as="commit")
        self.consumer = self.client.simple(self.group, self.topic, await_s=2)
        loops = [self._send] * self.senders + [self._receive] * self.receivers
        threads = [threading.Thread(target=loop) for loop in loops]
        for thread in threads:
            thread.start()
        return threads

    def has_acked(self, count: int) -> bool:
        return len(self.acked) >= count

    def _send(self) -> None:
        while not self.stopped.is_set():
            with self._noting("send"):
                body = f"{self.client.language} {next(self._numbers)}"
                id_ = self.client.send(self.producer, self.topic, body)["message_id"]
                self.sent[id_] = time.monotonic()
            time.sleep(self.pause_s)

    def _receive(self) -> None:
        while not self.stopped.is_set() or set(self.sent) - set(self.received):
            messages: list[Json] = []
            with self._noting("receive"):
                messages = self.client.receive_once(self.consumer, invisible_s=INVISIBLE_S)
            for message in messages:
                with self._counting:
                    self.received[message["message_id"]] += 1
                with self._noting("ack"):
                    self.client.ack(self.consumer, message)
                    self.acked[message["message_id"]] = time.monotonic()
            if not messages:
                time.sleep(_PAUSE_S)

    def _noting(self, what: str) -> "_Noting":
        return _Noting(self.errors, what)


@dataclass
class _Noting:
    """Counts the errors of a client instead of raising them."""

    errors: Counter[str]
    what: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> bool:
        if isinstance(error, ProgramError):
            self.errors[self.what] += 1
            return True
        return False


def first_after(times: dict[str, float], start_s: float) -> float | None:
    """How long after `start_s` the first of these happened."""
    later = [at_s - start_s for at_s in list(times.values()) if at_s > start_s]
    return min(later) if later else None


def kill(cluster: Cluster, victim: str) -> float:
    """Kill the process, and return the time."""
    assert cluster.server is not None
    os.kill(cluster.server.broker_pid() if victim == "broker" else cluster.server.proxy_pid(), signal.SIGKILL)
    return time.monotonic()


def check_that_all_go_on(loads: list[Load], victim: str, killed_s: float) -> None:
    """Each client sends and acknowledges again in time."""
    for load in loads:
        for what, times in (("sends", load.sent), ("acks", load.acked)):
            # Answers that were on their way when the process died do not count.
            going_on_s = wait_until(
                partial(first_after, times, killed_s + 1),
                OUTAGE_S - (time.monotonic() - killed_s) + 1,
                f"{load.client.language} {what} again after the {victim} was killed",
            )
            print(f"{load.client.language} {what} again {1 + going_on_s:.1f} s after the {victim} was killed")


def check_held(loads: list[Load], ended: str, forgotten: str, *, lost_a_proxy: bool) -> None:
    """What was held before the kill can be acknowledged, and transactions that were open end."""
    for load in loads:
        more = len(load.acked) + 50
        wait_until(partial(load.has_acked, more), 30, f"{load.client.language} keeps receiving and acking")
        load.client.ack(load.holder, load.held)
        load.commit(ended)
    for load in loads:
        language = load.client.language
        awaited = {ended} if lost_a_proxy and language in SLOW_TO_RENEW else {ended, forgotten}
        assert load.committed(awaited) >= awaited, f"{language}: a transaction did not end"


def finish(loads: list[Load], threads: list[threading.Thread], timeout_s: float = 60) -> None:
    for load in loads:
        load.stopped.set()
    for thread in threads:
        thread.join(timeout_s)


def check_nothing_lost(loads: list[Load]) -> None:
    for load in loads:
        doubled = sum(count - 1 for count in load.received.values())
        print(f"{load.client.language}: {len(load.sent)} sent, {doubled} doubled, errors {dict(load.errors)}")
        assert set(load.sent) <= set(load.received), f"{load.client.language} lost messages"


@pytest.mark.parametrize("victim", ["broker", "proxy"])
def test_every_client_goes_on_after_a_kill(
    victim: str, clients5: Callable[[str], Client5], cluster: Cluster, java: Program
) -> None:
    loads = [Load(clients5(language), f"{victim}_{language}", f"g_{victim}_{language}") for language in LANGUAGES]
    for load in loads:
        load.prepare(java)
        load.hold()
    threads = [thread for load in loads for thread in load.start()]
    try:
        for load in loads:
            wait_until(partial(load.has_acked, 20), 30, f"{load.client.language} receives and acks")
            load.open_transactions("ended", "forgotten")
        killed_s = kill(cluster, victim)
        check_that_all_go_on(loads, victim, killed_s)
        check_held(loads, "ended", "forgotten", lost_a_proxy=victim == "proxy")
    finally:
        finish(loads, threads)
    check_nothing_lost(loads)


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_every_client_goes_on_after_each_of_many_kills_under_heavy_load(
    clients5: Callable[[str], Client5], cluster: Cluster, java: Program
) -> None:
    """All clients at once, each as fast as it can with several threads, so that the machine is busy."""
    loads = [
        Load(clients5(language), f"heavy_{language}", f"g_heavy_{language}", senders=6, receivers=4, pause_s=0)
        for language in LANGUAGES
    ]
    for load in loads:
        load.prepare(java)
    threads = [thread for load in loads for thread in load.start()]
    lost_a_proxy = False
    try:
        for number, victim in enumerate(("broker", "proxy", "broker", "proxy", "proxy", "broker")):
            for load in loads:
                wait_until(partial(load.has_acked, len(load.acked) + 200), 60, f"{load.client.language} receives")
            for load in loads:
                load.hold()
                load.open_transactions(f"ended {number}", f"forgotten {number}")
            began_s, before = time.monotonic(), sum(len(load.sent) for load in loads)
            time.sleep(3)
            rate = (sum(len(load.sent) for load in loads) - before) / (time.monotonic() - began_s)
            print(f"{rate:.0f} messages per second before the {victim} is killed")
            check_that_all_go_on(loads, victim, kill(cluster, victim))
            lost_a_proxy |= victim == "proxy"
            check_held(loads, f"ended {number}", f"forgotten {number}", lost_a_proxy=lost_a_proxy)
    finally:
        finish(loads, threads, timeout_s=180)
    check_nothing_lost(loads)
