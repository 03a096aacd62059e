"""Where jobs are remembered: with the timeline that the brokers name, never in somebody's home folder."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from latermq.errors import ConfigError
from latermq.pipeline.bulk.bulk_job import brokers_of_job
from latermq.pipeline.bulk.job_root import find_job_root
from latermq.pipeline.driver import reported_timeline
from latermq.pipeline.timeline.root import open_root


class Scene:
    """Brokers at addresses, each with the timeline that it names."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.data = folder / "data"
        self.data.mkdir()
        self.timelines = {"127.0.0.1:1": str(self.data / "pipeline")}

    @contextlib.contextmanager
    def link(self, address: str) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(state=lambda: SimpleNamespace(timeline=self.timelines[address]))

    def find(self, root: str | None = None, job: str = "j") -> str:
        return find_job_root(root, "n:1", job).uri


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene(tmp_path)
    monkeypatch.delenv("LATERMQ_PIPELINE_TIMELINE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(scene.home))
    monkeypatch.setattr(reported_timeline, "BrokerLink", scene.link)
    monkeypatch.setattr(
        reported_timeline, "masters", lambda namesrv: {f"b{number}": at for number, at in enumerate(scene.timelines)}
    )
    return scene


def test_jobs_live_with_the_timeline_that_the_brokers_name(scene: Scene) -> None:
    assert scene.find() == str(scene.data / "pipeline")
    assert not scene.home.exists()


def test_a_folder_that_is_named_goes_above_what_brokers_say(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scene.find("/named") == "/named"
    monkeypatch.setenv("LATERMQ_PIPELINE_TIMELINE", "/of-the-environment")
    assert scene.find() == "/of-the-environment"


@pytest.mark.parametrize(
    ("timelines", "why"),
    [
        ({"192.0.2.77:1": "{data}/pipeline"}, "the folder of broker b0 is not reachable"),  # of another machine
        ({"127.0.0.1:1": "/not-there/pipeline"}, "is not reachable from this machine"),
        ({"127.0.0.1:1": ""}, "is not reachable from this machine"),  # of an older version
        ({"127.0.0.1:1": "{data}/pipeline", "127.0.0.1:2": "{data}/another"}, "the brokers use different folders"),
        ({}, "no broker is running"),
    ],
)
def test_where_the_folder_cannot_be_told_it_must_be_named(scene: Scene, timelines: dict[str, str], why: str) -> None:
    scene.timelines = {address: uri.format(data=scene.data) for address, uri in timelines.items()}
    with pytest.raises(ConfigError, match=why) as caught:
        scene.find()
    assert "--timeline" in caught.value.hint
    assert not scene.home.exists()


def test_a_job_of_the_old_default_place_is_taken_over(scene: Scene) -> None:
    assert brokers_of_job(open_root(str(scene.home / "latermq")), "old", ["b0"]) == ["b0"]
    root = open_root(scene.find(job="old"))
    assert brokers_of_job(root, "old", ["b0", "b1"]) == ["b0"]
    assert brokers_of_job(open_root(scene.find(job="new")), "new", ["b0", "b1"]) == ["b0", "b1"]
    # What it has become there since is not taken back.
    (scene.home / "latermq" / "bulk" / "old" / "brokers.json").write_text('["b9"]')
    scene.find(job="old")
    assert brokers_of_job(root, "old", ["b0"]) == ["b0"]
