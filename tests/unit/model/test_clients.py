"""Heartbeats and subscriptions come out of RocketMQ's fields, and go back into them, with nothing lost."""

from latermq.model.heartbeat import Consumer, Heartbeat
from latermq.model.subscription import Subscription
from latermq.protocol.remoting.clients import HeartbeatData, read_heartbeat, read_subscription, write_subscription
from latermq.protocol.remoting.json_body import decode_body

TAGS = Subscription(
    topic="orders", expression="a || b", expression_type="TAG", tags=["a", "b"], codes=[97, 98], version=7
)


def test_a_subscription_comes_back_from_the_fields_of_rocketmq_as_it_was() -> None:
    for one in (TAGS, Subscription(topic="t", expression="a > 1", expression_type="SQL92", is_class_filter=True)):
        assert read_subscription(write_subscription(one)) == one


def test_a_heartbeat_is_read_from_the_fields_of_rocketmq() -> None:
    body = (
        b'{"clientID":"c1","producerDataSet":[{"groupName":"makers"}],"consumerDataSet":[{"groupName":"readers",'
        b'"consumeType":"CONSUME_PASSIVELY","messageModel":"BROADCASTING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
        b'"subscriptionDataSet":[{"topic":"orders","subString":"a || b","tagsSet":["a","b"],"codeSet":[97,98],'
        b'"subVersion":7}]}]}'
    )
    assert read_heartbeat(decode_body(body, HeartbeatData)) == Heartbeat(
        client_id="c1",
        producer_groups=["makers"],
        consumers=[
            Consumer(
                group="readers",
                consume_type="CONSUME_PASSIVELY",
                message_model="BROADCASTING",
                consume_from="CONSUME_FROM_FIRST_OFFSET",
                subscriptions=[TAGS],
            )
        ],
    )
