"""What each request of the API needs: resources and actions. A request without a rule is refused.

The rights are those of the requests to brokers that do the same, which docs/protocol.md lists.
"""

from collections.abc import Iterable
from dataclasses import replace

from latermq.access.resources import GET, PUB, SUB, UPDATE, Access, Action, Actions, Kind
from latermq.client.dead_letters import topic_of
from latermq.http.endpoint import Call, Endpoint, Rule
from latermq.http.jobs.job import NewJob, Order
from latermq.message.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, TIMER_DEAD_LETTER_TOPIC
from latermq.message.timer_ids import parse_timer_id
from latermq.model.topic_access import topic_access

ALL_GROUPS = ALL_TOPICS = ""  # matched by `Topic:*` and `*` only, and refused if an entry denies some topic


class Fixed:
    """A rule that does not depend on what is requested, so that pages know beforehand whether to offer it."""

    def __init__(self, *accesses: Access) -> None:
        self.accesses = accesses

    def __call__(self, call: Call) -> tuple[Access, ...]:
        return self.accesses


def dead_letter_access(group: str, actions: Actions) -> Access:
    """Access to the dead letters of a group, which may be named by their topic as well."""
    topic = topic_of(group)
    if topic == TIMER_DEAD_LETTER_TOPIC:
        return topic_access(topic, actions)
    return Access(Kind.GROUP, topic.removeprefix(DEAD_LETTER_PREFIX), actions)


def group_access(group: str, *actions: Action) -> Access:
    """Access to a group."""
    return Access(Kind.GROUP, group, actions)


def cluster_access(*actions: Action) -> Access:
    """Access to the cluster."""
    return Access(Kind.CLUSTER, "", actions)


def _timer(*actions: Action) -> Rule:
    return lambda call: (topic_access(parse_timer_id(call.path["id"])[0], actions),)


def _topic_in_path(*actions: Action) -> Rule:
    return lambda call: (topic_access(call.path["topic"], actions),)


def _topic_in_query(*actions: Action) -> Rule:
    return lambda call: (topic_access(call.query.topic, actions),)


def _topic_in_body(*actions: Action) -> Rule:
    return lambda call: (topic_access(call.body.topic, actions),)


def _group(*actions: Action) -> Rule:
    return lambda call: (group_access(call.path["group"], *actions),)


def _dead_letters(*actions: Action) -> Rule:
    return lambda call: (dead_letter_access(call.path["group"], actions),)


def _reset(call: Call) -> tuple[Access, ...]:
    return group_access(call.path["group"], UPDATE), topic_access(call.body.topic, (UPDATE,))


def _resend(call: Call) -> tuple[Access, ...]:
    """Without a topic in the request, each letter's original topic is checked when it is known."""
    topics = [topic_access(call.body.topic, (PUB,))] if call.body.topic else []
    return dead_letter_access(call.path["group"], (SUB,)), *topics


def timer_accesses(topic: str, *actions: Action) -> tuple[Access, ...]:
    """Access to the timers of a topic, or of all topics. Those include retries, which belong to their groups."""
    if topic:
        return (topic_access(topic, actions),)
    return topic_access(ALL_TOPICS, actions), topic_access(RETRY_PREFIX, actions)


def job_accesses(job: NewJob | Order) -> tuple[Access, ...]:
    """What a job touches. Without a topic these may be all topics."""
    groups = [dead_letter_access(job.group, (SUB,))] if job.group else []
    if job.action == "resend":
        return *groups, topic_access(job.to_topic or job.topic or ALL_TOPICS, (PUB,))
    return *groups, *timer_accesses(job.topic, PUB)


def _timers(call: Call) -> tuple[Access, ...]:
    """Without a topic, a user sees those of its topics."""
    return (topic_access(call.query.topic, (PUB, GET)),) if call.query.topic else ()


def _job(call: Call) -> tuple[Access, ...]:
    return job_accesses(call.body)


_ANY_USER = Fixed()
_PARTIAL = Fixed()  # a user sees what it has a right to
_CLUSTER = Fixed(cluster_access(GET))

RULES: dict[tuple[str, str], Rule] = {
    ("GET", "/healthz"): _ANY_USER,
    ("GET", "/readyz"): _ANY_USER,
    ("GET", "/openapi.json"): _ANY_USER,
    ("GET", "/metrics"): _CLUSTER,
    ("POST", "/api/v1/timers"): _topic_in_body(PUB),
    ("POST", "/api/v1/timers:batch"): _ANY_USER,  # each line is checked
    ("GET", "/api/v1/timers"): _timers,
    ("GET", "/api/v1/timers/{id}"): _timer(PUB, GET),
    ("GET", "/api/v1/timers/{id}/history"): _timer(PUB, GET),
    ("PATCH", "/api/v1/timers/{id}"): _timer(PUB),
    ("DELETE", "/api/v1/timers/{id}"): _timer(PUB),
    ("POST", "/api/v1/timers/{id}/run"): _timer(PUB),
    ("POST", "/api/v1/jobs"): _job,
    ("GET", "/api/v1/jobs"): _PARTIAL,
    ("GET", "/api/v1/jobs/{id}"): _ANY_USER,  # what the job touches is checked, here and below
    ("GET", "/api/v1/jobs/{id}/impossible"): _ANY_USER,
    ("POST", "/api/v1/jobs/{id}/abort"): _ANY_USER,
    ("DELETE", "/api/v1/jobs/{id}"): _ANY_USER,
    ("GET", "/api/v1/density"): _CLUSTER,
    ("GET", "/api/v1/lateness"): _CLUSTER,
    ("GET", "/api/v1/throughput"): _CLUSTER,
    ("GET", "/api/v1/forecast"): _CLUSTER,
    ("POST", "/api/v1/what-if"): _CLUSTER,
    ("GET", "/api/v1/topics"): _PARTIAL,
    ("GET", "/api/v1/topics/{topic}"): _topic_in_path(GET),
    ("GET", "/api/v1/topics/{topic}/messages"): _topic_in_path(SUB, GET),
    ("GET", "/api/v1/messages"): _topic_in_query(SUB, GET),
    ("POST", "/api/v1/messages"): _topic_in_body(PUB),
    ("GET", "/api/v1/messages/trace"): _topic_in_query(SUB, GET),
    ("GET", "/api/v1/groups"): _PARTIAL,
    ("GET", "/api/v1/groups/{group}"): _group(GET),
    ("POST", "/api/v1/groups/{group}/offsets:reset"): _reset,
    ("GET", "/api/v1/dead-letters"): _PARTIAL,
    ("GET", "/api/v1/dead-letters/{group}"): _dead_letters(SUB, GET),
    ("GET", "/api/v1/dead-letters/{group}/export"): _dead_letters(SUB, GET),
    ("POST", "/api/v1/dead-letters/{group}/resend"): _resend,
    ("GET", "/api/v1/brokers"): _CLUSTER,
    ("GET", "/api/v1/state"): _CLUSTER,
    ("GET", "/api/v1/pipeline"): _CLUSTER,
    ("GET", "/api/v1/pipeline/runs"): _CLUSTER,
    ("GET", "/api/v1/alerts"): _CLUSTER,
}


def with_rules(endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    """Return the rows with their rules."""
    return [replace(row, access=RULES.get((row.method, row.path))) for row in endpoints]
