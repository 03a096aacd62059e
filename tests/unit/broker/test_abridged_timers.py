"""Timers that wait without the broker's properties, and consumers that get them all the same, beside timers of old."""

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.errors import IllegalMessage
from latermq.message.batch import BatchMember, encode_batch
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC
from latermq.message.properties import encode_properties
from latermq.message.record import Message, decode_record, record_properties
from latermq.message.record_fields import SYSFLAG_ABRIDGED
from latermq.message.slots import slot_of
from latermq.model.timers import Verdict
from latermq.protocol.remoting.rows import decode_rows, encode_rows
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.log_writer import Draft
from latermq.timer.admission import waiting_properties
from latermq.timer.delivery.renewal_builder import build_renewals
from tests.support.brokers_in_memory import HOST, STAMP, messages, open_broker, pass_time, send
from tests.support.pipeline.far_broker import FAR_MS, FarBroker
from tests.support.rows import Row, batch_of

DELAY_MS = 60_000
LEFT_OUT = {*STAMP, "TIMER_OUT_MS"}


class Scene:
    def __init__(self) -> None:
        self.clock, self.disk = SimulatedClock(), MemoryDisk()
        self.broker: Broker = open_broker(self.disk, self.clock)
        self.due_ms = self.clock.now_ms() + DELAY_MS

    def restart(self) -> None:
        self.broker.store.flush()
        self.disk = self.disk.after_process_crash()
        self.broker = open_broker(self.disk, self.clock)

    def waiting(self) -> list[Message]:
        return messages(self.broker, TIMER_TOPIC)

    def delivered(self) -> list[Message]:
        pass_time(self.broker, self.clock, 2 * DELAY_MS)
        return [message for queue_id in range(8) for message in messages(self.broker, "orders", queue_id)]


def complete(properties: dict[str, str], due_ms: int) -> dict[str, str]:
    return properties | STAMP | {"TIMER_OUT_MS": str(slot_of(due_ms)), "LMQ_DUE_MS": str(due_ms)}


def send_one(scene: Scene) -> None:
    send(scene.broker, b"body", UNIQ_KEY="u", KEYS="a b", color="red", CLUSTER="theirs", TIMER_DELAY_MS=str(DELAY_MS))


def schedule_a_row(scene: Scene) -> None:
    row = Row("u", due_ms=scene.due_ms, keys="a b", properties={"color": "red"})
    scene.broker.row_schedule.schedule(decode_rows(encode_rows(batch_of([row]))), HOST)


@pytest.mark.parametrize("schedule", [send_one, schedule_a_row])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_timer_waits_without_the_brokers_properties_and_is_delivered_with_them(
    schedule: Callable[[Scene], None], restarts: bool
) -> None:
    scene = Scene()
    schedule(scene)
    [waiting] = scene.waiting()
    assert waiting.sysflag == SYSFLAG_ABRIDGED
    assert waiting.properties.keys() & LEFT_OUT <= {"CLUSTER"}, "only what the sender set"
    if restarts:
        scene.restart()
    [message] = scene.delivered()
    assert message.sysflag == 0
    assert message.properties == complete(waiting.properties, scene.due_ms)


def test_the_bytes_of_both_records_are_those_of_the_format() -> None:
    scene = Scene()
    send_one(scene)
    written = []
    for message in (*scene.waiting(), *scene.delivered()):
        written.append(
            record_properties(scene.broker.store.log.read(message.physical_offset, message.size_bytes)).decode()
        )
    assert written[0] == (
        "UNIQ_KEY\x01u\x02KEYS\x01a b\x02color\x01red\x02CLUSTER\x01theirs\x02TIMER_DELAY_MS\x0160000\x02"
        f"REAL_TOPIC\x01orders\x02REAL_QID\x010\x02LMQ_DUE_MS\x01{scene.due_ms}\x02"
    )
    assert written[1] == (
        f"{written[0]}TIMER_OUT_MS\x01{slot_of(scene.due_ms)}\x02"
        "CLUSTER\x01DefaultCluster\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02"
    )


def test_a_record_of_an_earlier_release_has_them_and_gets_nothing_more() -> None:
    scene = Scene()
    known = {"UNIQ_KEY": "u", "CLUSTER": "of old", "MSG_REGION": "there", "TRACE_ON": "false"}
    properties = waiting_properties(known, "orders", 0, scene.due_ms)
    scene.broker.store.queues.hold("orders", 0)
    scene.broker.store.writer.append_all(
        [Draft(TIMER_TOPIC, 0, b"body", encode_properties(properties).encode(), 1, HOST)], scene.clock.now_ms()
    )
    scene.broker.timers.note_timer()
    send(scene.broker, b"new", UNIQ_KEY="v", TIMER_DELAY_MS=str(DELAY_MS))
    old, new = scene.delivered()
    assert old.properties == properties
    assert new.properties.items() >= STAMP.items()


def test_messages_of_a_batch_have_none_of_the_three_properties_before_and_after() -> None:
    scene = Scene()
    properties = f"UNIQ_KEY\x01u\x02TIMER_DELAY_MS\x01{DELAY_MS}\x02"
    scene.broker.writer.send_batch("orders", 0, encode_batch([BatchMember(0, b"body", properties.encode())]), 1, HOST)
    [message] = scene.delivered()
    assert message.properties == scene.waiting()[0].properties
    assert message.properties.keys() & LEFT_OUT == {"TIMER_OUT_MS"}


def test_a_moved_timer_is_still_abridged_and_has_the_new_time_when_it_is_delivered() -> None:
    scene = Scene()
    send_one(scene)
    assert scene.broker.pending.move("orders", "u", scene.due_ms + 7_000).verdict == Verdict.MOVED
    _, moved = scene.waiting()
    assert moved.sysflag == SYSFLAG_ABRIDGED
    [message] = scene.delivered()
    assert message.properties == complete(moved.properties, scene.due_ms + 7_000)


def test_a_renewed_timer_is_still_abridged() -> None:
    scene = Scene()
    send_one(scene)
    [waiting] = scene.waiting()
    record = scene.broker.store.log.read(waiting.physical_offset, waiting.size_bytes)
    renewed = build_renewals(np.array([0]), record, np.array([len(record)]), 1_000).block
    assert renewed is not None
    message = decode_record(bytes(renewed.data))
    assert message.sysflag == SYSFLAG_ABRIDGED
    assert message.properties == waiting.properties | {"LMQ_TIMER_ID": "0", "TIMER_ROLL_TIMES": "1"}


def test_a_dead_letter_has_them() -> None:
    scene = Scene()
    send_one(scene)
    [waiting] = scene.waiting()
    broken = waiting.properties | {"REAL_QID": "none"}
    scene.broker.store.writer.append_all(
        [Draft(TIMER_TOPIC, 0, b"lost", encode_properties(broken).encode(), 1, HOST, 0, SYSFLAG_ABRIDGED)],
        scene.clock.now_ms(),
    )
    scene.broker.timers.note_timer()
    scene.delivered()
    [letter] = messages(scene.broker, TIMER_DEAD_LETTER_TOPIC)
    assert letter.sysflag == 0
    assert letter.properties.items() >= complete(broken, scene.due_ms).items()


def test_a_timer_that_spark_hands_back_has_them() -> None:
    far = FarBroker()
    far.schedule("t")
    [waiting] = [one for one in messages(far.broker, TIMER_TOPIC) if one.properties.get("UNIQ_KEY") == "t"]
    far.lose_log()
    far.pass_time(FAR_MS)
    [message] = [one for queue_id in range(8) for one in messages(far.broker, "orders", queue_id)]
    assert message.properties == complete(waiting.properties, int(waiting.properties["LMQ_DUE_MS"]))
    far.close()


@pytest.mark.parametrize("size", [32_400, 32_450, 32_550, 32_600])
def test_what_is_accepted_fits_when_it_is_delivered(size: int) -> None:
    scene = Scene()
    with suppress(IllegalMessage):
        send(scene.broker, b"body", UNIQ_KEY="u", note="x" * size, TIMER_DELAY_MS=str(DELAY_MS))
    assert len(scene.waiting()) == (size < 32_500)
    for message in scene.delivered():
        assert message.properties.items() >= STAMP.items()
