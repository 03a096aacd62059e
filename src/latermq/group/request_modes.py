"""The request modes of groups, pull or pop. This is the table behind messageRequestMode.json."""

from latermq.errors import NoPermission
from latermq.message.names import RETRY_PREFIX
from latermq.model.request_mode import SHARE_ALL, Mode, RequestMode, RequestModeTable


class RequestModes:
    """The mode of each (topic, group) for which one was set. Others have the default."""

    def __init__(self, table: RequestModeTable, default: Mode, max_modes: int) -> None:
        self._modes = table.modes
        self._default = default
        self._max_modes = max_modes
        self._count = sum(map(len, self._modes.values()))
        self.changed = False

    def of(self, topic: str, group: str) -> RequestMode:
        """Return the mode of a group in a topic. Retry topics of pulling groups are always pulled."""
        known = self._modes.get(topic, {}).get(group)
        if known is not None:
            return known
        mode: Mode = "PULL" if topic.startswith(RETRY_PREFIX) else self._default
        return RequestMode(topic=topic, group=group, mode=mode, shared_with=SHARE_ALL if mode == "POP" else 0)

    def put(self, mode: RequestMode) -> None:
        """Set a mode. The caller has checked topic and group."""
        groups = self._modes.get(mode.topic, {})
        if mode.group not in groups:
            if self._count >= self._max_modes:
                raise NoPermission(
                    f"{self._count} request modes are set; broker.max_request_modes is {self._max_modes}",
                    hint="Delete unused topics or groups, or raise broker.max_request_modes",
                )
            self._count += 1
            groups = self._modes.setdefault(mode.topic, {})
        groups[mode.group] = mode
        self.changed = True

    def remove_topic(self, topic: str) -> None:
        """Forget the modes in a deleted topic."""
        removed = self._modes.pop(topic, None)
        if removed is not None:
            self._count -= len(removed)
            self.changed = True

    def remove_group(self, group: str) -> None:
        """Forget the modes of a deleted group."""
        for topic in [topic for topic, groups in self._modes.items() if group in groups]:
            del self._modes[topic][group]
            if not self._modes[topic]:
                del self._modes[topic]
            self._count -= 1
            self.changed = True

    def copy(self) -> RequestModeTable:
        """Return the table as it is now, to be encoded off the loop."""
        return RequestModeTable(modes={topic: dict(groups) for topic, groups in self._modes.items()})

    def statistics(self) -> dict[str, int]:
        """Return the number of modes that are set."""
        return {"request_modes": self._count}
