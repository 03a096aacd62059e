"""A driver for tests: it has the secret of the broker's timeline, and writes its note there."""

import secrets
from pathlib import Path

from latermq.handover.driver_note import encode_note, note_path
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline_secret import load_secret, secret_path


def driver_link(address: str, timeline: Path, *, patience_s: float = 20.0) -> BrokerLink:
    """A connection with the secret of this timeline."""
    return BrokerLink(address, patience_s=patience_s, secret=load_secret(secret_path("", str(timeline))))


def begin_as_driver(link: BrokerLink, timeline: Path, table_end: int | None = None) -> PipelineState:
    """Take over from any previous driver. By default the table ends at the ingest offset of the broker."""
    known, token = link.state(), secrets.token_hex(8)
    note = timeline / note_path(known.store_id)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_bytes(encode_note(token))
    return link.begin(token, known.ingest_offset if table_end is None else table_end)
