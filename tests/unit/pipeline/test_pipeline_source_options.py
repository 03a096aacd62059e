"""The options and columns of the data source, as Spark passes them."""

import zlib

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from latermq.errors import ConfigError
from latermq.message.ids import pack_host
from latermq.message.record_fields import SYSFLAG_COMPRESSED
from latermq.message.record_writer import encode_record
from latermq.pipeline.source.options import OPTION_NAMES, checked_options, parse_options
from latermq.pipeline.source.records import RecordBlock
from latermq.pipeline.source.source import checked_columns

HOST = pack_host("10.0.0.1", 40_000)


def record_with(body: bytes, sysflag: int = 0) -> bytes:
    return encode_record(
        b"orders", body, b"", queue_id=0, queue_offset=0, physical_offset=0, born_timestamp_ms=1, born_host=HOST,
        store_timestamp_ms=1, store_host=HOST, sysflag=sysflag,
    )  # fmt: skip


def test_names_of_options_have_no_case_and_sparks_own_are_accepted() -> None:
    options = parse_options({"TOPIC": "orders", "maxrowspertrigger": "5", "MergeSchema": "true", "job": "j"})
    assert (options.topic, options.max_rows_per_trigger) == ("orders", 5)
    assert checked_options({"checkpointLocation": "/x", "timeZone": "UTC"})["timezone"] == "UTC"


def test_an_unknown_option_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown option: topik") as caught:
        parse_options({"topik": "orders"})
    assert all(name in str(caught.value) for name in OPTION_NAMES)


def test_the_properties_of_a_catalog_table_are_not_options() -> None:
    given = {
        "provider": "latermq", "owner": "root", "team": "x", "path": "/warehouse/t", "option.topic": "orders",
        "topic": "orders",
    }  # fmt: skip
    assert checked_options(given) == {"topic": "orders"}
    assert checked_options({"provider": "latermq", "owner": "root"}) == {}
    with pytest.raises(ConfigError, match="unknown option: topik"):
        checked_options({"provider": "latermq", "option.topik": "orders", "topik": "orders"})


def test_a_table_of_timers_is_read_by_the_columns_it_is_written_with() -> None:
    text = StringType()
    declared = StructType().add("topic", text).add("key", text).add("due", TimestampType()).add("body", text)
    assert checked_columns(declared.add("tag", text)) == {
        "topic": "topic", "key": "keys", "due": "due", "body": "body_text", "tag": "tags"
    }  # fmt: skip
    with pytest.raises(ConfigError, match="no column delay_ms of type bigint"):
        checked_columns(StructType().add("delay_ms", LongType()))


def test_bodies_are_read_as_consumers_receive_them() -> None:
    text = "grün" * 20
    records = [
        record_with(text.encode()),
        record_with(zlib.compress(text.encode()), SYSFLAG_COMPRESSED),
        record_with(b"\xff\x00"),
        record_with(b""),
    ]
    batch = RecordBlock(records).batch(("body", "body_text"))
    assert batch.column(0).to_pylist() == [text.encode(), text.encode(), b"\xff\x00", b""]
    assert batch.column(1).to_pylist() == [text, text, "\ufffd\x00", ""]
    assert batch.schema.types == [pa.binary(), pa.string()]
