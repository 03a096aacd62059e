"""Whatever would keep a driver from its work is found before it begins, and ends no driver that is at work."""

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from latermq.client.session.failures import ConnectionLost
from latermq.errors import ConfigError, CorruptStore, LaterMQError, StoreError
from latermq.handover.driver_note import decode_note, note_path
from latermq.handover.ingest_claim import IngestClaim, claim_path, encode_claim
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver import ingest as ingesting
from latermq.pipeline.driver.brokers import QueuePlace
from latermq.pipeline.driver.ingest import Ingest
from latermq.pipeline.driver.store_ids import StoreIds
from latermq.pipeline.timeline import lost_entries
from latermq.pipeline.timeline.lost_entries import read_claim, write_claim
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline_secret import Recipient, is_valid_signature, load_or_create_secret, secret_path, sign
from tests.support.faults.timer_histories import random_history, write_timeline

ADDRESS, OTHER = "10.0.0.1:10911", "10.0.0.2:10911"
STATE = PipelineState("s", "broker-a", 3, 60, 0, 100, 0, 0, 0, instance="i")


class BegunError(Exception):
    """The broker was asked for an epoch."""


class Scene:
    """A driver in a folder, and a broker that gives no epoch but says that it was asked."""

    def __init__(self, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.state_reply = STATE
        self.others: dict[str, PipelineState] = {}
        self.request: tuple[str, int] | None = None
        monkeypatch.setattr(ingesting, "queues_of", lambda *_: [QueuePlace("broker-a", 0, ADDRESS)])
        monkeypatch.setattr(ingesting, "BrokerLink", lambda _, **settings: self)
        load_or_create_secret(secret_path("", root.uri))

    def state(self) -> PipelineState:
        return self.state_reply

    def begin(self, token: str, table_end: int) -> PipelineState:
        self.request = token, table_end
        raise BegunError

    def close(self) -> None: ...

    def ask(self, address: str) -> PipelineState:
        if address not in self.others:
            raise ConnectionLost(f"cannot reach {address}")
        return self.others[address]

    def start(self) -> None:
        Ingest(cast(Any, None), self.root, "nowhere:1", "broker-a", store_ids=StoreIds(self.ask)).start()

    def is_refused(self, error: type[LaterMQError], match: str) -> LaterMQError:
        for _ in range(3):
            with pytest.raises(error, match=match) as caught:
                self.start()
        assert self.request is None
        return caught.value


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(open_root(str(tmp_path)), monkeypatch)


@pytest.mark.parametrize("table_end", [60, 25, 0])
def test_a_driver_says_where_its_table_ends_and_leaves_a_token(scene: Scene, table_end: int) -> None:
    if table_end:
        write_timeline(scene.root.timeline, [random_history(1)], table_end)
    with pytest.raises(BegunError):
        scene.start()
    note = decode_note(Path(scene.root.at(note_path("s"))).read_bytes(), "it")
    assert scene.request == (note.token, table_end)


def test_what_neither_the_table_nor_the_log_holds_is_named_with_what_to_do(scene: Scene) -> None:
    write_timeline(scene.root.timeline, [random_history(1)], 25)
    scene.state_reply = msgspec.structs.replace(STATE, min_entry=40)
    error = scene.is_refused(CorruptStore, "in entries 25 to 39 are missing")
    assert "restore its newest backup" in error.hint
    assert "remove latermq.ingest" in error.hint


def test_a_table_that_is_missing_is_not_made_anew_where_the_log_cannot_fill_it(scene: Scene) -> None:
    scene.state_reply = msgspec.structs.replace(STATE, min_entry=40)
    scene.is_refused(CorruptStore, "ends at 0, and the broker's log begins at 40")
    assert not Path(scene.root.timeline).exists()


def test_a_log_that_ends_below_the_table_is_an_old_copy(scene: Scene) -> None:
    write_timeline(scene.root.timeline, [random_history(1)], 110)
    scene.is_refused(CorruptStore, "ends at entry 100, but .* has all entries below 110")


def test_a_table_of_another_schema_version_is_refused(scene: Scene) -> None:
    write_timeline(scene.root.timeline, [random_history(1)], 60, version="3")
    scene.is_refused(ConfigError, "has schema version 3")


def test_a_damaged_claim_is_refused(scene: Scene) -> None:
    path = Path(scene.root.at(claim_path("s")))
    path.parent.mkdir()
    path.write_bytes(b"{}\n0\n")
    scene.is_refused(CorruptStore, "is damaged")


def test_a_copy_is_refused_while_the_broker_that_fed_the_timeline_is_alive(scene: Scene) -> None:
    """Also where the two are registered with different name servers: the claim says who it was."""
    write_claim(scene.root, "s", IngestClaim(end=60, epoch=3, address=OTHER))
    scene.others[OTHER] = msgspec.structs.replace(STATE, instance="the original")
    scene.is_refused(CorruptStore, "have the same store id, s")
    scene.others.clear()
    with pytest.raises(BegunError):
        scene.start()


def test_a_claim_keeps_the_address_of_who_wrote_it_last_and_never_goes_back(scene: Scene) -> None:
    assert write_claim(scene.root, "s", IngestClaim(end=60, epoch=3, address=OTHER)) is None
    known = write_claim(scene.root, "s", IngestClaim(end=50, epoch=4, address=ADDRESS))
    assert known is not None
    assert known.address == OTHER
    assert read_claim(scene.root, "s") == IngestClaim(end=60, epoch=4, address=ADDRESS)


def test_a_driver_that_writes_its_claim_late_does_not_lower_that_of_the_next(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier driver has read the claims, and writes its own when the next one has long claimed more."""
    write_claim(scene.root, "s", IngestClaim(end=60, epoch=3, address=OTHER))
    stale = read_claim(scene.root, "s")
    write_claim(scene.root, "s", IngestClaim(end=300, epoch=4, address=ADDRESS))
    monkeypatch.setattr(lost_entries, "read_claim", lambda _root, _store_id: stale)
    write_claim(scene.root, "s", IngestClaim(end=200, epoch=3, address=OTHER))
    assert read_claim(scene.root, "s") == IngestClaim(end=300, epoch=4, address=ADDRESS)


def test_a_driver_that_claims_more_after_the_next_has_begun_is_heard(scene: Scene) -> None:
    """Its append may still succeed, so the table may hold what it claims."""
    write_claim(scene.root, "s", IngestClaim(end=60, epoch=4, address=ADDRESS))
    write_claim(scene.root, "s", IngestClaim(end=200, epoch=3, address=OTHER))
    assert read_claim(scene.root, "s") == IngestClaim(end=200, epoch=4, address=ADDRESS)


def test_only_the_claims_of_the_last_epochs_are_kept_and_the_highest_end_with_them(scene: Scene) -> None:
    old = Path(scene.root.at(claim_path("s")))
    old.parent.mkdir()
    old.write_bytes(encode_claim(IngestClaim(end=900, epoch=2)))
    write_claim(scene.root, "s.2", IngestClaim(end=7, epoch=1))  # another store with a name that looks like an epoch's
    for epoch in range(3, 40):
        write_claim(scene.root, "s", IngestClaim(end=epoch, epoch=epoch))
    assert sorted(path.name for path in old.parent.iterdir()) == ["s.2.1", "s.36", "s.37", "s.38", "s.39"]
    assert read_claim(scene.root, "s") == IngestClaim(end=900, epoch=39)


def test_a_secret_that_is_missing_is_said_and_looked_for_again(scene: Scene) -> None:
    secret = secret_path("", scene.root.uri)
    kept = secret.read_bytes()
    secret.unlink()
    refused = scene.is_refused(StoreError, "cannot read .* secret .*: No such file")
    assert "set pipeline.secret_file to its path" in refused.hint
    secret.write_bytes(kept)
    with pytest.raises(BegunError):
        scene.start()


def test_a_driver_far_from_its_brokers_is_asked_to_name_the_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the timeline is not a local folder"):
        secret_path("", "s3a://bucket/timers")
    assert secret_path("", "s3a://bucket/timers", tmp_path) == tmp_path / "pipeline.secret"
    assert secret_path("", "", tmp_path) == secret_path("", str(tmp_path / "pipeline"))
    assert secret_path("/etc/secret", "s3a://bucket/timers", tmp_path) == Path("/etc/secret")


def test_no_two_requests_have_the_same_signature() -> None:
    fields: list[dict[str, object]] = [
        {"attempt": "a", "epoch": 1}, {"attempt": "a8:epoch=1"}, {"attempt": "a\nepoch=1"}, {"attempt": "", "epoch": 2},
        {"epoch": 1}, {},
    ]  # fmt: skip
    recipients = [Recipient("s", "i"), Recipient("1s", "i"), Recipient("", "i"), Recipient("s", ""), Recipient("", "s")]
    signed = [sign(b"s" * 32, code, one, said) for said in fields for code in (1, 11) for one in recipients]
    assert len(set(signed)) == len(signed)
    mine = recipients[0]
    assert sign(b"s" * 32, 1, mine, {}) != sign(b"t" * 32, 1, mine, {})
    assert not is_valid_signature(sign(b"", 1, mine, {}), b"", 1, mine, {}), "without a secret nobody is believed"
