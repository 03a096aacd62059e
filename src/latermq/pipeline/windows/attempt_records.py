"""Validation of an attempt's records against its row columns, before any of them is delivered.

Checksums detect damage. They do not detect a writer that wrote false data. A record under the wrong entry, with a wrong
due time, or for one of the broker's own topics would be appended to the log unchanged.
"""

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latermq.errors import CorruptStore, IllegalMessage, LaterMQError
from latermq.message.names import TIMER_TOPIC, check_sendable_topic
from latermq.message.timer_code import schedules
from latermq.pipeline.source.records import RecordBlock

_HINT = "The broker loads another attempt of the window, or builds one"


def check_records(rows: pa.Table, where: str) -> None:
    """Refuse rows whose record is damaged, is of another entry, timer or due time, or is for a broker's own topic."""
    if not rows.num_rows:
        return
    try:
        _check(rows)
    except (LaterMQError, UnicodeDecodeError) as error:
        reason = error.message if isinstance(error, LaterMQError) else "a topic is not valid UTF-8"
        raise CorruptStore(f"{where}: {reason}", hint=_HINT) from error


def _check(rows: pa.Table) -> None:
    records = rows.column("record").combine_chunks()
    block = RecordBlock([b"".join(records.to_pylist())], is_timer_topic=True)
    if not np.array_equal(block.sizes, pc.binary_length(records).to_numpy()):
        raise CorruptStore("a record's length differs from its row's")
    if not block.are_in(TIMER_TOPIC.encode()) or not schedules(block.kinds).all():
        raise CorruptStore("a record is not a timer")
    found = {"entry_offset": block.queue_offsets, "due_ms": block.dues[0], "timer_id": block.timer_ids[0]}
    for name, of_records in found.items():
        of_rows = rows.column(name).to_numpy()
        if not np.array_equal(of_rows, of_records):
            at = int(np.argmax(of_rows != of_records))
            raise CorruptStore(f"the row says {name} {of_rows[at]}, its record says {of_records[at]}")
    block.check_parts()
    for topic in pc.unique(block.batch(("topic",)).column("topic")).to_pylist():
        with suppress(IllegalMessage):  # delivery turns a record with an invalid topic into a dead letter
            check_sendable_topic(topic or "")
