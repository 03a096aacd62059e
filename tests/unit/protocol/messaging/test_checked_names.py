"""Names that clients of the 5.x protocol may use."""

import pytest

from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.checked_names import check_group_name, check_topic_name
from latermq.protocol.messaging.refusals import CallRefused


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a" * 128, "TBW102", "rmq_sys_x", "RMQ_SYS_TRANS_HALF_TOPIC", "a\x01"]
)
def test_topics_that_clients_may_not_use_are_refused(name: str) -> None:
    with pytest.raises(CallRefused) as caught:
        check_topic_name(name)
    assert caught.value.status_code == pb.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", ["orders", "a" * 127, "%DLQ%group", "ns%orders", "a|b-c_d"])
def test_other_topics_are_accepted(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", " ", "a b", "a" * 121, "CID_RMQ_SYS_TRANS", "a\x01"])
def test_groups_that_clients_may_not_use_are_refused(name: str) -> None:
    with pytest.raises(CallRefused) as caught:
        check_group_name(name)
    assert caught.value.status_code == pb.ILLEGAL_CONSUMER_GROUP


@pytest.mark.parametrize("name", ["group", "a" * 120, "ns%group", "%DLQ%x"])
def test_other_groups_are_accepted(name: str) -> None:
    check_group_name(name)
