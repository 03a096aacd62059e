"""Which resource a topic belongs to: brokers, name servers, proxies and the console decide about the same one."""

from latermq.access.resources import GET, PUB, SUB, UPDATE, Access, Action, Actions, Kind
from latermq.message.names import CLUSTER_TOPICS, RETRY_PREFIX

_ON_GROUP = {PUB: SUB}  # only the consumers of a group write to its retry topic
_ON_CLUSTER = {PUB: UPDATE, SUB: GET}  # a cluster has neither, and who writes there writes to any topic


def topic_access(name: str, actions: Actions) -> Access:
    """Map a topic to its resource: retry topics to their group, topics with messages of all topics to the cluster."""
    if name.startswith(RETRY_PREFIX):
        return Access(Kind.GROUP, name.removeprefix(RETRY_PREFIX), _mapped(actions, _ON_GROUP))
    if name in CLUSTER_TOPICS:
        return Access(Kind.CLUSTER, "", _mapped(actions, _ON_CLUSTER))
    return Access(Kind.TOPIC, name, actions)


def _mapped(actions: Actions, meanings: dict[Action, Action]) -> Actions:
    return tuple(dict.fromkeys(meanings.get(action, action) for action in actions))
