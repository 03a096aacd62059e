"""Loads the broker's tables at the start: topics, groups, consumer offsets and request modes."""

from latermq.broker.tables.config_files import (
    GROUPS_PATH,
    OFFSETS_PATH,
    REQUEST_MODES_PATH,
    TOPICS_PATH,
    load_table,
)
from latermq.broker.tables.topics import Topics
from latermq.clock import Clock
from latermq.config import BrokerConfig
from latermq.group.auto_created import AutoCreated
from latermq.group.offsets import ConsumerOffsets
from latermq.group.request_modes import RequestModes
from latermq.group.subscriptions import SubscriptionGroups
from latermq.model.group import GroupTable
from latermq.model.offset_table import OffsetTable
from latermq.model.request_mode import RequestModeTable
from latermq.model.topic import TopicTable
from latermq.store.files.disk import Disk
from latermq.store.files.set_aside import Trouble


def open_tables(
    disk: Disk, settings: BrokerConfig, clock: Clock, client_clock: Clock, troubles: list[Trouble]
) -> tuple[Topics, SubscriptionGroups, ConsumerOffsets, RequestModes]:
    """Topics, groups, consumer offsets and request modes as they were saved, as far as they can be parsed."""
    topics = Topics(
        load_table(disk, TOPICS_PATH, TopicTable, troubles),
        settings,
        clock,
        AutoCreated("topics", client_clock, settings.max_auto_created),
    )
    groups = SubscriptionGroups(
        load_table(disk, GROUPS_PATH, GroupTable, troubles),
        clock,
        auto_create=settings.auto_create_groups,
        max_groups=settings.max_groups,
        max_config_bytes=int(settings.max_group_configs),
        auto_created=AutoCreated("groups", client_clock, settings.max_auto_created),
    )
    offsets = ConsumerOffsets(load_table(disk, OFFSETS_PATH, OffsetTable, troubles), settings.max_offsets)
    modes = RequestModes(
        load_table(disk, REQUEST_MODES_PATH, RequestModeTable, troubles),
        settings.default_request_mode,
        settings.max_request_modes,
    )
    damaged_paths = {trouble.path for trouble in troubles}
    # A table from a backup is saved soon, so that the next start finds it at once.
    topics.changed = TOPICS_PATH in damaged_paths
    groups.changed = GROUPS_PATH in damaged_paths
    offsets.changed = OFFSETS_PATH in damaged_paths
    modes.changed = REQUEST_MODES_PATH in damaged_paths
    return topics, groups, offsets, modes
