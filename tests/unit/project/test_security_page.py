"""docs/security.md names every bound that a setting puts, and no setting that is not there."""

import re
from pathlib import Path

import msgspec

from latermq.broker.metrics.limits import LIMITS, limits
from latermq.clock import SimulatedClock
from latermq.config import Config
from latermq.server.handlers.broker_service import BrokerService
from latermq.server.remoting.listener import Listener
from tests.support.admins import Scene

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "security.md").read_text()
SETTINGS = {
    f"{section.name}.{key}" for section in msgspec.structs.fields(Config) for key in section.type.__struct_fields__
}
# Of time, not of what somebody holds; and what a message may be, which operations.md tells.
ELSEWHERE = {
    "timer.max_delay",
    "clock.max_step",
    "broker.max_message",
    "broker.max_batch_messages",
    "broker.pull_max_messages",
}
NAMED = {name for name in re.findall(r"`(\w+\.\w+)`", PAGE) if name.split(".")[0] in Config.__struct_fields__}


def test_the_page_names_every_bound() -> None:
    bounds = {setting for setting in SETTINGS if ".max_" in setting} - ELSEWHERE
    assert bounds - NAMED == set()


def test_the_page_names_no_setting_that_is_not_there() -> None:
    unknown = NAMED - SETTINGS - {"pipeline.secret"}  # the last is a file's name
    assert unknown == set()


def test_what_counts_towards_a_bound_is_counted() -> None:
    scene = Scene()
    service = BrokerService(scene.broker)
    listener = Listener(service, Config().server, SimulatedClock())
    known = scene.broker.statistics() | service.statistics() | scene.service.statistics() | listener.statistics()
    assert {counted for _, counted, _ in LIMITS} - known.keys() == set()
    assert {lowered for _, _, lowered in LIMITS if lowered} - known.keys() == set()
    bounds, used = limits(Config(), known)
    assert bounds["broker.max_topics"] == Config().broker.max_topics
    assert used["broker.max_topics"] == len(scene.broker.topics.table.topicConfigTable)
    assert all(used[setting] <= bound for setting, bound in bounds.items())
