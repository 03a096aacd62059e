"""Names of topics and groups: a resource of the 5.x protocol has a namespace, which brokers see as a prefix.

The namespace is separated by `%`. Prefixes of retry and dead-letter topics come before it. System topics have none.
"""

from latermq.message.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic
from latermq.protocol.messaging import messaging_pb2 as pb

SEPARATOR = "%"
_PREFIXES = (RETRY_PREFIX, DEAD_LETTER_PREFIX)


def full_name(resource: pb.Resource) -> str:
    """Return the name that brokers use."""
    namespace, name = resource.resource_namespace, resource.name
    if not namespace or not name or is_system_topic(name):
        return name
    prefix, rest = _split_prefix(name)
    own = namespace + SEPARATOR
    return name if rest.startswith(own) else prefix + own + rest


def resource_of(name: str) -> pb.Resource:
    """Return the resource with this name."""
    prefix, rest = _split_prefix(name)
    namespace, separator, short = rest.partition(SEPARATOR)
    if not namespace or not separator or not short or is_system_topic(name):
        return pb.Resource(name=name)
    return pb.Resource(resource_namespace=namespace, name=prefix + short)


def _split_prefix(name: str) -> tuple[str, str]:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
