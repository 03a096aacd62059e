"""Which resource a topic belongs to, and which action on it counts."""

import pytest

from latermq.access.resources import GET, LIST, PUB, SUB, UPDATE, Access, Action, Kind
from latermq.message.names import CLUSTER_TOPICS
from latermq.model.topic_access import topic_access

IN_THE_CLUSTER = {PUB: UPDATE, SUB: GET, GET: GET, UPDATE: UPDATE, LIST: LIST}


@pytest.mark.parametrize("name", ["orders", "ns%orders", "%DLQ%readers", "%DLQ%ns%readers", "RMQ_SYS_TRACE_TOPIC", ""])
def test_an_ordinary_topic_and_one_with_dead_letters_are_their_own_resource(name: str) -> None:
    assert topic_access(name, (PUB, GET)) == Access(Kind.TOPIC, name, (PUB, GET))


@pytest.mark.parametrize("group", ["readers", "ns%readers", "readers_orders"])
def test_a_retry_topic_belongs_to_its_group_which_writes_and_reads_it(group: str) -> None:
    assert topic_access(f"%RETRY%{group}", (PUB, SUB, GET)) == Access(Kind.GROUP, group, (SUB, GET))


@pytest.mark.parametrize("name", sorted(CLUSTER_TOPICS))
@pytest.mark.parametrize(("action", "meaning"), IN_THE_CLUSTER.items())
def test_a_topic_with_messages_of_all_topics_belongs_to_the_cluster(name: str, action: Action, meaning: Action) -> None:
    assert topic_access(name, (action,)) == Access(Kind.CLUSTER, "", (meaning,))
