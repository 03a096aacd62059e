"""Far timers on a timeline without Spark: a take-over as the driver, and an ingest of what the broker has."""

from pathlib import Path

from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import DUE_MS, KEYS, REAL_TOPIC, TAGS, UNIQUE_KEY
from latermq.message.record import decode_records
from latermq.pipeline.driver.link import BrokerLink, QueueRange
from tests.interop.waiting import wait_until
from tests.support.faults.timer_histories import Row, append_rows, write_timeline
from tests.support.pipeline.drivers import begin_as_driver, driver_link
from tests.support.serving import Server

FAR = ("--set", "pipeline.enabled=true", "--set", "pipeline.near_horizon=30m")


def ingest(server: Server, folder: Path) -> int:
    """Write all timers of the timer topic to the timeline, as a driver does. Return how many it wrote."""
    with BrokerLink(server.broker) as link:
        state = link.state(flush=True)
        pulled = link.pull(QueueRange(TIMER_TOPIC, 0, 0, state.flushed_entry), max_bytes=8 << 20)
    rows: list[Row] = []
    raw = bytes(pulled.records)
    at = 0
    for message in decode_records(raw):
        record = raw[at : at + message.size_bytes]
        at += message.size_bytes
        properties = message.properties
        if REAL_TOPIC not in properties or int(properties[DUE_MS]) < state.now_ms + 40 * 60_000:
            continue
        entry = message.queue_offset
        rows.append(
            {
                "store_id": state.store_id, "entry_offset": entry, "timer_id": entry, "kind": "timer",
                "due_ms": int(properties[DUE_MS]), "topic": properties[REAL_TOPIC],
                "unique_key": properties[UNIQUE_KEY], "keys": properties.get(KEYS, ""),
                "tags": properties.get(TAGS, ""), "record": record, "takes": "",
            }
        )  # fmt: skip
    if not (folder / "_delta_log").exists():
        write_timeline(str(folder), [], 0)
    append_rows(str(folder), rows, state.store_id, state.flushed_entry)
    return len(rows)


def begin(server: Server, timeline: Path) -> None:
    """Take over as the driver, and wait until far timers are the driver's."""
    with driver_link(server.broker, timeline) as driver:
        begin_as_driver(driver, timeline)

    def has_cut() -> bool:
        with BrokerLink(server.broker) as link:
            return bool(link.state().cuts)

    wait_until(has_cut, 30.0, "the broker's first cut")
