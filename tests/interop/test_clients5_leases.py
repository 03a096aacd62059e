"""How long a push consumer of the 5.x protocol holds a message: as long as its client lives."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.clients5 import LANGUAGES, Client5
from tests.interop.programs import Program
from tests.interop.target import IS_APACHE, Cluster, running_cluster_with_proxy
from tests.support.needs import LONG

pytestmark = pytest.mark.skipif(IS_APACHE, reason="Apache's proxy renews messages in its memory instead")

LEASE_S = 60 if LONG else 8
BUSY_S = 300 if LONG else 20
LOST_CLIENT_S = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = (f"pop.lease={LEASE_S}s", f"proxy.lost_client_timeout={LOST_CLIENT_S}s", "proxy.poll_timeout=3s")
    with running_cluster_with_proxy(tmp_path_factory.mktemp("cluster"), *settings) as running:
        yield running


def made(java: Program, name: str) -> str:
    """A topic and a group of the same name."""
    java.call("make_topics", topics=[name], message_type="MIXED")
    java.call("make_group", group=name)
    return name


@pytest.mark.timeout(BUSY_S + 200)
def test_a_handler_that_is_busy_for_several_leases_gets_its_message_once(
    clients5: Callable[[str], Client5], java: Program, cluster: Cluster
) -> None:
    consumers = {}
    for language in LANGUAGES:
        name = made(java, f"busy_{language}")
        client = clients5(language)
        consumers[language] = client.push(name, name, busy_ms=BUSY_S * 1000)
        client.send(client.producer(name), name, "slow")
    for language, consumer in consumers.items():
        clients5(language).pushed(consumer, 1)
    time.sleep(BUSY_S + 1)
    # Acknowledged by now; what was not would come again when the client says good-bye.
    stops = {language: clients5(language).program.begin("stop", name=name) for language, name in consumers.items()}
    for language, consumer in consumers.items():
        clients5(language).program.finish(stops[language])
        again = clients5("java").simple(f"busy_{language}", f"busy_{language}", await_s=2)
        assert clients5("java").receive_once(again) == [], language
        assert [message["attempt"] for message in clients5(language).pushed(consumer, 1)] == [1], language


def test_the_messages_of_a_killed_client_come_again(
    clients5: Callable[[str], Client5], java: Program, cluster: Cluster, tmp_path: Path
) -> None:
    killed_ms = {}
    for language in LANGUAGES:
        name = made(java, f"killed_{language}")
        sender = clients5("java")
        sender.send(sender.producer(name), name, "held")
        (tmp_path / language).mkdir()
        with (doomed := Client5(language, tmp_path / language / "log", cluster.endpoints)).program:
            doomed.pushed(doomed.push(name, name, busy_ms=60_000), 1)
            doomed.program.kill()
        killed_ms[language] = time.time_ns() // 1_000_000
    for language in LANGUAGES:
        other = clients5("java").simple(f"killed_{language}", f"killed_{language}")
        [again] = clients5("java").receive(other, timeout_s=LEASE_S + 20)
        clients5("java").ack(other, again)
        assert (again["body"], again["attempt"]) == ("held", 2)
        assert again["received_ms"] - killed_ms[language] >= LOST_CLIENT_S * 1000, language
