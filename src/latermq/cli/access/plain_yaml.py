"""Reads YAML as RocketMQ 4.x does for its accounts: names and secrets are the texts that the file contains.

Other loaders read `0123456` as the octal number 42798, and `12:30:45` as 45045: clients could not sign any more.
"""

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, ScalarNode

_KEPT_TAGS = ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")


class PlainLoader(yaml.SafeLoader):
    """A safe loader that leaves all scalars texts, and refuses a key that occurs twice."""

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, MappingNode) else ():
            if not isinstance(key, ScalarNode):
                continue
            if key.value in seen:  # of two lists of permissions, one would be lost
                raise ConstructorError(None, None, f"the key {key.value!r} occurs twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _KEPT_TAGS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
