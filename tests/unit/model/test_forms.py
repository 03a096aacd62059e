"""A model struct and the struct of its JSON have the same attributes: what one lacks would silently get its default."""

import msgspec
import pytest

from latermq.config_json import groups, offsets, topics
from latermq.config_json.java_json import convert, decode_json, encode_json
from latermq.model import data_version, group, offset_table, pipeline_state, timers, topic
from latermq.protocol.remoting import pipeline as pipeline_bodies
from latermq.protocol.remoting import timers as timer_bodies

FORMS: list[tuple[type[msgspec.Struct], type[msgspec.Struct]]] = [
    (data_version.DataVersion, topics.DataVersionJson),
    (topic.Topic, topics.TopicJson),
    (topic.TopicTable, topics.TopicTableJson),
    (group.GroupSubscription, groups.GroupSubscriptionJson),
    (group.ExponentialRetryPolicy, groups.ExponentialRetryPolicyJson),
    (group.CustomizedRetryPolicy, groups.CustomizedRetryPolicyJson),
    (group.GroupRetryPolicy, groups.GroupRetryPolicyJson),
    (group.Group, groups.GroupJson),
    (group.GroupTable, groups.GroupTableJson),
    (offset_table.OffsetTable, offsets.OffsetTableJson),
    (offset_table.DelayOffsetTable, offsets.DelayOffsetTableJson),
    (timers.Outcome, timer_bodies.OutcomeJson),
    (timers.PendingTimer, timer_bodies.PendingTimerJson),
    (timers.PendingPage, timer_bodies.PendingPageJson),
    (timers.Density, timer_bodies.DensityJson),
    (pipeline_state.CutState, pipeline_bodies.CutStateJson),
    (pipeline_state.WindowState, pipeline_bodies.WindowStateJson),
    (pipeline_state.PipelineState, pipeline_bodies.PipelineStateJson),
]


@pytest.mark.parametrize(("model", "form"), FORMS, ids=lambda struct: struct.__name__)
def test_a_model_struct_and_its_json_have_the_same_attributes(
    model: type[msgspec.Struct], form: type[msgspec.Struct]
) -> None:
    assert model.__struct_fields__ == form.__struct_fields__
    assert [one.required for one in msgspec.structs.fields(model)] == [
        one.required for one in msgspec.structs.fields(form)
    ]


def test_a_topic_is_written_with_the_names_of_rocketmq() -> None:
    made = topic.Topic(name="orders", read_queues=3, permissions=topic.READ, is_ordered=True)
    written = topics.encode_topic(made)
    assert written == (
        b'{"topicName":"orders","readQueueNums":3,"writeQueueNums":8,"perm":4,"topicFilterType":"SINGLE_TAG",'
        b'"topicSysFlag":0,"order":true,"attributes":{}}'
    )
    assert convert(decode_json(written, topics.TopicJson), topic.Topic) == made


def test_a_group_comes_back_from_its_json_as_it_was() -> None:
    policy = group.GroupRetryPolicy(type="EXPONENTIAL", exponential=group.ExponentialRetryPolicy(initial_ms=7))
    wanted = [group.GroupSubscription(topic="orders", expression_type="TAG", expression="a || b", version=3)]
    made = group.Group(name="readers", max_retries=3, retry_policy=policy, subscriptions=wanted)
    written = groups.encode_group(made)
    assert convert(decode_json(written, groups.GroupJson), group.Group) == made
    assert encode_json(decode_json(written, groups.GroupJson)) == written
    assert b'"groupRetryPolicy":{"type":"CUSTOMIZED"}' in groups.encode_group(group.Group(name="readers"))


def test_timers_and_the_state_of_a_broker_come_back_from_their_bodies_as_they_were() -> None:
    found = [timers.Outcome(timers.Verdict.MOVED, "orders", "U1", 7, 2)]
    assert timer_bodies.decode_outcomes(timer_bodies.encode_outcomes(found)) == found
    page = timers.PendingPage([timers.PendingTimer(1, "orders", "U1", "k", "t", 7, 0, 1, 4, "body")], "next")
    assert timer_bodies.decode_page(timer_bodies.encode_page(page)) == page
    assert b'"uniqueKey":"U1"' in timer_bodies.encode_page(page)
    density = timers.Density(7, [1], [2], [3])
    assert timer_bodies.decode_density(timer_bodies.encode_density(density)) == density
    state = pipeline_state.PipelineState(
        "s", "broker-a", 4, 7, 0, 9, 1, 2, 3, [(1, 2)],
        [pipeline_state.CutState(1, 2, 3, 4)], [pipeline_state.WindowState(1, 2, 3, 4, "a")],
    )  # fmt: skip
    assert pipeline_bodies.decode_state(pipeline_bodies.encode_state(state)) == state
    assert b'"ingestOffset":7' in pipeline_bodies.encode_state(state)
