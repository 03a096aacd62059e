"""Lists as a user with rights to some topics and groups sees them: without the others, and without counting them."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from latermq.access.resources import GET, LIST, PUB, SUB, Access
from latermq.http.api.access_rules import (
    cluster_access,
    dead_letter_access,
    group_access,
    job_accesses,
    timer_accesses,
)
from latermq.http.api.dead_letters import DeadLetterCounts
from latermq.http.api.groups import GroupList
from latermq.http.api.jobs import JobList
from latermq.http.api.timer_list import TimerPage
from latermq.http.api.topics import TopicNames
from latermq.http.endpoint import Endpoint
from latermq.http.security.roles import Rights
from latermq.model.topic_access import topic_access

_WHOLE = (cluster_access(GET, LIST),)


def _topics(found: TopicNames, rights: Rights) -> TopicNames:
    topics = [name for name in found.topics if rights.may([topic_access(name, (PUB, SUB, GET, LIST))])]
    return replace(found, topics=topics, is_partial=True)


def _groups(found: GroupList, rights: Rights) -> GroupList:
    groups = [one for one in found.groups if rights.may([group_access(one.group, SUB, GET, LIST)])]
    return replace(found, groups=groups, is_partial=True)


def _dead_letters(found: DeadLetterCounts, rights: Rights) -> DeadLetterCounts:
    groups = [one for one in found.groups if rights.may([dead_letter_access(one.group, (SUB, GET))])]
    return replace(found, groups=groups, is_partial=True)


def _timers(found: TimerPage, rights: Rights) -> TimerPage:
    """`next` is kept: the request itself has read only topics that the user may see."""
    timers = [one for one in found.timers if rights.may([topic_access(one.topic, (PUB, GET))])]
    return replace(found, timers=timers, is_partial=True)


def _jobs(found: JobList, rights: Rights) -> JobList:
    jobs = [job for job in found.jobs if rights.may(job_accesses(job.order))]
    return replace(found, jobs=jobs, is_partial=True)


# By path: the right with which a user sees the whole list, and what others see of it.
_VISIBLE: Mapping[str, tuple[tuple[Access, ...], Callable[[Any, Rights], Any]]] = {
    "/api/v1/topics": (_WHOLE, _topics),
    "/api/v1/groups": (_WHOLE, _groups),
    "/api/v1/dead-letters": (_WHOLE, _dead_letters),
    "/api/v1/jobs": ((cluster_access(GET),), _jobs),
    "/api/v1/timers": (timer_accesses("", PUB, GET), _timers),
}


def with_visible(row: Endpoint) -> Callable[[Any, Rights], Any] | None:
    """Return what leaves out of the answer of a row what a user has no right to, or None if the rule is enough."""
    if row.method != "GET" or row.path not in _VISIBLE:
        return None
    whole, visible = _VISIBLE[row.path]
    return lambda found, rights: found if rights.may(whole) else visible(found, rights)
