"""The records of an attempt's rows, compared with what the rows say of them before any of it is delivered.

Checksums tell that nothing was damaged. They do not tell that who wrote it told the truth: a record under another
entry, a due time that is not its own, or one for a topic of the broker's would be appended to the log as it is.
"""

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latermq.errors import CorruptStore, IllegalMessage, LaterMQError
from latermq.message.names import TIMER_TOPIC, check_sendable_topic
from latermq.pipeline.source.records import MOVED, TIMER, RecordBlock

_HINT = "Another attempt of the window holds the right ones, or is made"


def check_records(rows: pa.Table, where: str) -> None:
    """Refuse rows with a record that is not whole, not of this entry, timer and time, or for a topic of the broker."""
    if not rows.num_rows:
        return
    try:
        _check(rows)
    except (LaterMQError, UnicodeDecodeError) as error:
        told = error.message if isinstance(error, LaterMQError) else "a topic is no text"
        raise CorruptStore(f"{where}: {told}", hint=_HINT) from error


def _check(rows: pa.Table) -> None:
    records = rows.column("record").combine_chunks()
    block = RecordBlock([b"".join(records.to_pylist())], waiting=True)
    if not np.array_equal(block.sizes, pc.binary_length(records).to_numpy()):
        raise CorruptStore("records end elsewhere than their rows")
    if not block.lie_in(TIMER_TOPIC.encode()) or not np.isin(block.kinds, (TIMER, MOVED)).all():
        raise CorruptStore("a record is no timer")
    found = {"entry_offset": block.queue_offsets, "due_ms": block.dues[0], "timer_id": block.timer_ids[0]}
    for name, of_records in found.items():
        of_rows = rows.column(name).to_numpy()
        if not np.array_equal(of_rows, of_records):
            at = int(np.argmax(of_rows != of_records))
            raise CorruptStore(f"a row with {name} {of_rows[at]} has a record with {of_records[at]}")
    block.check_parts()
    for topic in pc.unique(block.batch(("topic",)).column("topic")).to_pylist():
        with suppress(IllegalMessage):  # of a topic that cannot be, delivery makes a dead letter
            check_sendable_topic(topic or "")
