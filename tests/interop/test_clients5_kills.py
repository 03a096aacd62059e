"""`kill -9` of the broker and of the proxy while all official clients of the 5.x protocol send, receive and ack."""

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
    """One client that sends in one thread, and receives and acks in another, whatever fails."""

    client: Client5
    topic: str
    group: str
    stopped: threading.Event = field(default_factory=threading.Event)
    sent: dict[str, float] = field(default_factory=dict)  # message id → when its send was answered
    received: Counter[str] = field(default_factory=Counter)
    acked: dict[str, float] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    holder: str = ""
    held: Json = field(default_factory=dict)

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
        threads = [threading.Thread(target=loop) for loop in (self._send, self._receive)]
        for thread in threads:
            thread.start()
        return threads

    def has_acked(self, count: int) -> bool:
        return len(self.acked) >= count

    def _send(self) -> None:
        number = 0
        while not self.stopped.is_set():
            with self._noting("send"):
                id_ = self.client.send(self.producer, self.topic, f"{self.client.language} {number}")["message_id"]
                self.sent[id_] = time.monotonic()
            number += 1
            time.sleep(_PAUSE_S)

    def _receive(self) -> None:
        while not self.stopped.is_set() or set(self.sent) - set(self.received):
            messages: list[Json] = []
            with self._noting("receive"):
                messages = self.client.receive_once(self.consumer, invisible_s=INVISIBLE_S)
            for message in messages:
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


@pytest.mark.parametrize("victim", ["broker", "proxy"])
def test_every_client_goes_on_after_a_kill(
    victim: str, clients5: Callable[[str], Client5], cluster: Cluster, java: Program
) -> None:
    loads = [Load(clients5(language), f"{victim}_{language}", f"g_{victim}_{language}") for language in LANGUAGES]
    producers: list[str] = []
    for load in loads:
        for topic in (load.topic, f"{load.topic}_held"):
            java.call("make_topics", topics=[topic], message_type="MIXED")
        java.call("make_group", group=load.group)
        # A message that is held while the process is killed.
        load.holder = load.client.simple(load.group, f"{load.topic}_held", await_s=2)
        producer = load.client.producer(f"{load.topic}_held", checked_as="commit")
        load.client.send(producer, f"{load.topic}_held", "held")
        [load.held] = load.client.receive(load.holder)
        producers.append(producer)
    threads = [thread for load in loads for thread in load.start()]
    try:
        for load in loads:
            wait_until(partial(load.has_acked, 20), 30, f"{load.client.language} receives and acks")
        # Two transactions that are open meanwhile.
        for load, producer in zip(loads, producers, strict=True):
            for name in ("ended", "forgotten"):
                load.client.send(producer, f"{load.topic}_held", name, transaction=f"{victim} {name}")
        assert cluster.server is not None
        pid = cluster.server.broker_pid() if victim == "broker" else cluster.server.proxy_pid()
        os.kill(pid, signal.SIGKILL)
        killed_s = time.monotonic()
        for load in loads:
            for what, times in (("sends", load.sent), ("acks", load.acked)):
                # Answers that were on their way when the process died do not count.
                going_on_s = wait_until(
                    partial(first_after, times, killed_s + 1),
                    OUTAGE_S - (time.monotonic() - killed_s) + 1,
                    f"{load.client.language} {what} again after the {victim} was killed",
                )
                print(f"{load.client.language} {what} again {1 + going_on_s:.1f} s after the {victim} was killed")
        for load in loads:
            more = len(load.acked) + 50
            wait_until(partial(load.has_acked, more), 30, f"{load.client.language} keeps receiving and acking")
            load.client.ack(load.holder, load.held)
            load.client.program.call("end_transaction", transaction=f"{victim} ended", resolution="commit")
        for load in loads:
            language = load.client.language
            awaited = {"ended"} if victim == "proxy" and language in SLOW_TO_RENEW else {"ended", "forgotten"}
            assert load.committed(awaited) >= awaited, f"{language}: a transaction did not end"
    finally:
        for load in loads:
            load.stopped.set()
        for thread in threads:
            thread.join(60)
    for load in loads:
        doubled = sum(count - 1 for count in load.received.values())
        print(f"{load.client.language}: {len(load.sent)} sent, {doubled} doubled, errors {dict(load.errors)}")
        assert set(load.sent) <= set(load.received), f"{load.client.language} lost messages"
