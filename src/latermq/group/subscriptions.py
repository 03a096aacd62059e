"""The configuration of consumer groups. This is the table behind subscriptionGroup.json."""

from latermq.clock import Clock
from latermq.config_json.groups import encode_group
from latermq.errors import GroupNotFound, NoPermission
from latermq.group.auto_created import AutoCreated
from latermq.message.names import check_group
from latermq.model.group import Group, GroupTable

# Groups of RocketMQ's own tools, which always exist.
BUILT_IN_GROUPS = ("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_RMQ_SYS_TRANS")
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"


class SubscriptionGroups:
    """All consumer groups with their configurations."""

    def __init__(
        self,
        table: GroupTable,
        clock: Clock,
        *,
        auto_create: bool,
        max_groups: int,
        max_config_bytes: int,
        auto_created: AutoCreated,
    ) -> None:
        self.table = table
        self._clock = clock
        self._auto_create = auto_create
        self._max_groups = max_groups
        self._max_config_bytes = max_config_bytes
        self.changed = False
        self.auto_created = auto_created
        for name in BUILT_IN_GROUPS:
            table.groups.setdefault(name, Group(name=name))
        self.unsaved = set(table.groups)  # names of groups that changed since the table was last encoded
        # A running total, because encoding 50,000 groups takes 50 ms.
        self._config_bytes = sum(map(_encoded_bytes, table.groups.values()))

    def find(self, group: str) -> Group | None:
        """Return the group's configuration, or None if the group does not exist."""
        return self.table.groups.get(group)

    def require(self, group: str, by: bytes = b"") -> Group:
        """Return the group's configuration. If allowed, auto-create a missing group on behalf of the host `by`."""
        found = self.table.groups.get(group)
        if found is not None:
            return found
        check_group(group)
        if not self._auto_create and not group.startswith(SYSTEM_GROUP_PREFIX):
            raise GroupNotFound(
                f"consumer group {group!r} does not exist", hint=f"Create it: latermq group create {group}"
            )
        self.auto_created.check(by)
        made = self.put(Group(name=group))
        self.auto_created.add(by, group, unused=True)
        return made

    def put(self, group: Group) -> Group:
        """Create or update a group."""
        check_group(group.name)
        table = self.table.groups
        if group.name not in table and len(table) >= self._max_groups:
            raise NoPermission(
                f"there are {len(table)} consumer groups, the limit set by broker.max_groups",
                hint="Delete unused groups, or raise broker.max_groups",
            )
        more_bytes = _encoded_bytes(group) - _encoded_bytes(table.get(group.name))
        if more_bytes > 0 and self._config_bytes + more_bytes > self._max_config_bytes:
            raise NoPermission(
                f"the configurations of all groups have {self._config_bytes} bytes; with this one they would exceed "
                f"broker.max_group_configs",
                hint="Configure fewer subscriptions, delete unused groups, or raise the setting",
            )
        self._config_bytes += more_bytes
        table[group.name] = group
        self.auto_created.use(group.name)
        self._touch(group.name)
        return group

    def remove(self, group: str) -> bool:
        """Remove a group. Return whether it existed."""
        removed = self.table.groups.pop(group, None)
        if removed is None:
            return False
        self._config_bytes -= _encoded_bytes(removed)
        self.auto_created.use(group)
        self._touch(group)
        return True

    def statistics(self) -> dict[str, int]:
        """Return the number of groups and the size of their configurations as JSON."""
        return {"groups": len(self.table.groups), "group_config_bytes": self._config_bytes}

    def _touch(self, group: str) -> None:
        self.unsaved.add(group)
        self.table.version.bump(self._clock.now_ms())
        self.changed = True


def _encoded_bytes(group: Group | None) -> int:
    return len(encode_group(group)) if group is not None else 0
