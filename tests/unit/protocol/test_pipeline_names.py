"""Names that become paths below the pipeline's folder: of stores, of attempts, of the files in manifests, of jobs."""

from pathlib import Path

import msgspec
import pytest

from latermq.errors import ConfigError, CorruptStore, StoreError
from latermq.handover.manifest import Manifest, WindowFile, decode_manifest, encode_manifest, window_folder
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.bulk.bulk_job import job_folder
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.root import open_root
from latermq.pipeline.windows.attempts import remove_finished_windows
from latermq.protocol.remoting.frames import encode_response
from latermq.protocol.remoting.pipeline import encode_state
from latermq.store.message_store import STORE_ID_PATH
from latermq.timer import apache_import
from latermq.timer.intake.renewal import PATH as ROLL_WINDOW_PATH
from tests.support.admins import Scene
from tests.support.frame_server import frame_server

STATE = PipelineState(
    store_id="s", broker_name="broker-a", epoch=4, ingest_offset=7, min_entry=0, flushed_entry=9, now_ms=1,
    done_upto=2, done_wake_ms=3,
)  # fmt: skip
ODD = ["..", "../../victim", "/etc", "", ".", "a/b", "a\0b", "x" * 300]


@pytest.mark.parametrize("store_id", ODD)
def test_a_driver_believes_no_broker_whose_store_id_is_a_path(store_id: str) -> None:
    state = msgspec.structs.replace(STATE, store_id=store_id)
    with (
        frame_server(lambda request: encode_response(request, body=encode_state(state))) as server,
        BrokerLink(server.address) as link,
    ):
        with pytest.raises(CorruptStore, match="invalid store id"):
            link.state()
        with pytest.raises(CorruptStore, match="invalid store id"):
            link.begin("token", 0)


@pytest.mark.parametrize("name", ODD)
def test_no_part_of_a_path_leads_out_of_the_pipelines_folder(name: str, tmp_path: Path) -> None:
    root = open_root(str(tmp_path / "pipeline"))
    assert root.at("windows", "s", "1") == f"{tmp_path}/pipeline/windows/s/1"
    if name != "a/b":
        with pytest.raises(StoreError, match="is not a valid path below"):
            root.at(window_folder(name, 1))
    with pytest.raises((ConfigError, StoreError)):
        job_folder(root, name)


def test_windows_of_a_store_that_is_called_like_a_path_are_not_removed(tmp_path: Path) -> None:
    (tmp_path / "victim" / "1").mkdir(parents=True)
    (tmp_path / "victim" / "2").mkdir()
    root = open_root(str(tmp_path / "pipeline"))
    with pytest.raises(StoreError, match="is not a valid path below"):
        remove_finished_windows(root, msgspec.structs.replace(STATE, store_id="../../victim"))
    assert sorted(path.name for path in (tmp_path / "victim").iterdir()) == ["1", "2"]


def test_a_manifest_names_files_of_its_own_folder_only() -> None:
    def manifest(name: str) -> Manifest:
        return Manifest(
            store_id="s", number=1, cut_entry=1, from_ms=0, until_ms=1, made_by="spark", table_version=1,
            ingest_offset=1, rows=1, files=[WindowFile(name, 1, 1, 1)],
        )  # fmt: skip

    assert decode_manifest(encode_manifest(manifest("part-0.parquet")), "here").rows == 1
    for name in ODD:
        with pytest.raises(CorruptStore, match="lists an invalid file"):
            decode_manifest(encode_manifest(manifest(name)), "here")


def test_a_broker_whose_own_small_files_are_damaged_says_what_to_do() -> None:
    damaged = [
        (STORE_ID_PATH, b"../../victim\n", "is not a store id"),
        (ROLL_WINDOW_PATH, b"soon", "is not a number"),
        (apache_import.PATH, b"[" * 100_000, "does not parse"),
    ]
    for path, content, said in damaged:
        scene = Scene()
        scene.broker.close()
        scene.disk.replace(path, content)
        scene.disk.remove("latermq.checkpoint")
        with pytest.raises(CorruptStore, match=said) as caught:
            Scene(scene.disk)
        assert caught.value.hint
