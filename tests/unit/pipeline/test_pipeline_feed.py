"""A driver whose place another has taken does nothing any more, and brokers that share a store id are not fed."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from latermq.client.session.failures import ConnectionLost
from latermq.errors import IllegalOperation, LaterMQError, NoPermission, ServiceUnavailable
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver import feed as feeding
from latermq.pipeline.driver.driver import Driver
from latermq.pipeline.driver.feed import BrokerFeed, FeedSettings
from latermq.pipeline.driver.ingest import IngestSettings
from latermq.pipeline.driver.store_ids import StoreIds
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.timeline.table_sync import TableSync
from tests.interop.waiting import wait_until

STATE = PipelineState("s", "broker-a", 1, 0, 0, 0, 0, 0, 0, instance="i")


class Query:
    """A stream without news."""

    status = {"isTriggerActive": False}  # noqa: RUF012

    def __init__(self) -> None:
        self.isActive = True

    def stop(self) -> None:
        self.isActive = False


class Scene:
    """A broker, and the ingest of its feed."""

    address = "10.0.0.1:10911"

    def __init__(self, root: Root) -> None:
        self.state = STATE
        self.is_away = False
        self.refusals: list[LaterMQError] = []
        self.queries: list[Query] = []
        self.builds = 0
        self.epoch: int | None = None
        self.timeline = ""
        self.others: dict[str, PipelineState] = {}
        self.store_ids = StoreIds(self._ask)
        self.stop = threading.Event()
        settings = FeedSettings(IngestSettings(), builds_windows=True, local_rows=-1, round_s=0.01)
        self.feed = BrokerFeed(
            cast(Any, None), root, "nowhere:1", "broker-a", settings, self.stop,
            table_sync=TableSync(root, root.timeline), store_ids=self.store_ids,
        )  # fmt: skip

    def _ask(self, address: str) -> PipelineState:
        if address not in self.others:
            raise ConnectionLost(f"cannot reach {address}")
        return self.others[address]

    def ingest(self, *_: Any, **__: Any) -> "Scene":
        return self

    def start(self) -> Query:
        self.store_ids.check(self.address, self.state)
        if self.refusals:
            raise self.refusals.pop()
        self.epoch, self.timeline = self.state.epoch, self.state.timeline
        self.queries.append(Query())
        return self.queries[-1]

    def close(self) -> None: ...

    def link(self, *_: Any, **__: Any) -> "Link":
        return Link(self)

    open_link = link

    def build(self, *_: Any, fence: Any, **__: Any) -> None:
        fence()
        self.builds += 1


class Link:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def state(self) -> PipelineState:
        if self._scene.is_away:
            raise ConnectionLost("away")
        return self._scene.state


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene = Scene(open_root(str(tmp_path)))
    monkeypatch.setattr(feeding, "Ingest", scene.ingest)
    monkeypatch.setattr(feeding, "BrokerLink", scene.link)
    monkeypatch.setattr(feeding, "build_ready_windows", scene.build)
    yield scene
    scene.stop.set()
    if scene.queries:
        assert scene.feed.join(10)


def test_a_feed_ends_when_another_driver_begins_though_its_stream_has_no_news(scene: Scene) -> None:
    scene.feed.start()
    wait_until(lambda: scene.builds, 10, "a round")
    scene.state = msgspec.structs.replace(STATE, epoch=2)
    wait_until(lambda: scene.feed.failure, 10, "its end")
    builds = scene.builds
    assert isinstance(scene.feed.failure, IllegalOperation)
    assert "another driver has taken over broker broker-a" in scene.feed.failure.message
    assert scene.feed.join(10)
    assert scene.builds == builds
    assert [query.isActive for query in scene.queries] == [False]


def test_a_broker_is_not_fed_while_another_one_has_its_store_id(scene: Scene) -> None:
    scene.feed.start()
    wait_until(lambda: scene.builds, 10, "a round")
    other = "10.0.0.2:10911"
    scene.others[other] = msgspec.structs.replace(STATE, instance="clone", broker_name="broker-b")
    scene.store_ids.add_addresses([other])
    wait_until(lambda: not scene.queries[0].isActive, 10, "the end of its stream")
    assert scene.feed.failure is None
    scene.others.clear()
    wait_until(lambda: len(scene.queries) == 2, 10, "its stream, when the other one is gone")


def test_a_broker_that_comes_back_with_another_folder_is_asked_anew_before_it_is_fed(scene: Scene) -> None:
    scene.feed.start()
    wait_until(lambda: scene.builds, 10, "a round")
    scene.state = msgspec.structs.replace(STATE, instance="again")
    builds = scene.builds
    wait_until(lambda: scene.builds > builds + 1, 10, "further rounds")
    assert len(scene.queries) == 1  # a start alone changes nothing
    scene.state = msgspec.structs.replace(STATE, instance="again", timeline="/another")
    wait_until(lambda: len(scene.queries) == 2, 20, "another stream")
    assert [query.isActive for query in scene.queries] == [False, True]


def test_a_compaction_asks_every_broker_whether_it_has_another_driver(scene: Scene) -> None:
    driver = Driver.__new__(Driver)
    driver.feeds = {}
    with pytest.raises(ServiceUnavailable, match="no broker confirms this driver"):
        driver._check_ownership()
    scene.epoch = 1
    scene.feed._ingest = cast(Any, scene)
    driver.feeds["broker-a"] = scene.feed
    driver._check_ownership()
    scene.is_away = True
    with pytest.raises(ServiceUnavailable):
        driver._check_ownership()
    scene.is_away = False
    scene.state = msgspec.structs.replace(STATE, epoch=2)
    with pytest.raises(IllegalOperation):
        driver._check_ownership()


def test_a_feed_whose_secret_is_wrong_says_so_and_goes_on_once_it_is_right(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.refusals = [NoPermission("request 7011 is not signed with the secret of broker broker-a", hint="Copy it")]
    scene.feed.start()
    wait_until(lambda: scene.builds, 10, "a round")
    assert scene.feed.failure is None
    reason = "request 7011 is not signed with the secret of broker broker-a. Copy it"
    assert f"feed of broker-a stalled: {reason}" in caplog.text
