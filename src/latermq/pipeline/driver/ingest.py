"""The ingest of one broker: streams its timer topic into the timeline and reports the progress to the broker."""

import contextlib
import json
import logging
import secrets
from dataclasses import dataclass

from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from latermq.config import Duration
from latermq.errors import CorruptStore, IllegalOperation
from latermq.handover.driver_note import encode_note, note_path
from latermq.handover.ingest_claim import IngestClaim
from latermq.message.names import TIMER_TOPIC
from latermq.message.slots import SLOT_MS
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver.brokers import queues_of
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.driver.store_ids import StoreIds
from latermq.pipeline.source.ranges import offset_key
from latermq.pipeline.spark.pools import INGEST_POOL, use_pool
from latermq.pipeline.timeline.lost_entries import read_claim, write_claim
from latermq.pipeline.timeline.root import Root, file_errors, write_file
from latermq.pipeline.timeline.table_sync import TableSync
from latermq.pipeline.timeline.takers import with_takers
from latermq.pipeline.timeline.timeline import SCHEMA, append, create_timeline, ingested_entry
from latermq.pipeline_secret import load_secret, secret_path

_log = logging.getLogger("latermq.pipeline")

# Upper bound of a batch. A Delta commit takes about a second, however few rows it has.
BATCH_ROWS = 500_000
MIN_PART_ROWS = 50_000
INGESTED_COLUMNS = (
    "queue_offset", "timer_id", "kind", "due_ms", "topic", "unique_key", "keys", "tags", "takes", "record",
)  # fmt: skip


@dataclass(frozen=True)
class IngestSettings:
    """The size of a batch, and the interval between smaller ones."""

    every_ms: int = Duration.parse("30s")
    batch_rows: int = BATCH_ROWS
    import_precision_ms: int = SLOT_MS
    secret_file: str = ""  # empty: next to the timeline's folder


class Ingest:
    """Ingests one broker's entries into the timeline.

    The latest driver to begin wins; the broker refuses earlier ones.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: Root,
        namesrv: str,
        broker: str,
        settings: IngestSettings | None = None,
        *,
        table_sync: TableSync | None = None,
        store_ids: StoreIds | None = None,
    ) -> None:
        """All ingests of a driver share `table_sync` and `store_ids`."""
        self._spark = spark
        self._root = root
        self._table_sync = table_sync or TableSync(root, root.timeline)
        self._store_ids = store_ids or StoreIds()
        self._namesrv = namesrv
        self._settings = settings or IngestSettings()
        self._place = queues_of(namesrv, TIMER_TOPIC, broker)[0]
        # Read again each time: a user may have fixed a missing or wrong file.
        self._secret = load_secret(secret_path(self._settings.secret_file, root.uri))
        self._link = self.open_link()
        self._state: PipelineState | None = None
        self._start = 0

    def open_link(self, **settings: float) -> BrokerLink:
        """Open another connection to the broker, with the driver's secret."""
        return BrokerLink(self._place.address, secret=self._secret, **settings)

    @property
    def address(self) -> str:
        """The address of the broker."""
        return self._place.address

    @property
    def epoch(self) -> int | None:
        """The driver epoch of this ingest; None before it has begun."""
        return None if self._state is None else self._state.epoch

    @property
    def timeline(self) -> str:
        """The folder that the broker named when this ingest began; empty if the broker's release reports none."""
        return "" if self._state is None else self._state.timeline

    @property
    def checkpoint(self) -> str:
        """The stream's checkpoint folder below the root, a new one for each epoch.

        The table and the broker determine where to resume, so a checkpoint that disagrees with them is never trusted.
        """
        assert self._state is not None
        return f"checkpoints/{self._state.store_id}/{self._state.epoch}"

    def start(self, *, available_now: bool = False) -> StreamingQuery:
        """Take over the broker's ingest and resume at the table's end.

        `available_now`: stop at the entries there are now.
        """
        known, ingested = self._check()
        state = self._state = self._link.begin(self._write_note(known.store_id), ingested)
        if ingested < known.ingest_offset:
            _log.warning(
                "the timeline ends at entry %d of %s instead of %d: the missing entries are ingested again",
                ingested,
                state.broker_name,
                known.ingest_offset,
            )
        create_timeline(self._spark, self._root)
        self._start = max(ingested, state.min_entry)
        self._remove_checkpoints(state)
        _log.info("ingest of %s (epoch %d) starts at entry %d", state.broker_name, state.epoch, self._start)
        use_pool(self._spark, INGEST_POOL)  # the stream keeps the pool of the thread that starts it
        stream = self._stream(state)
        writer = (
            stream.writeStream.queryName(f"ingest {state.broker_name}")
            .option("checkpointLocation", f"{self._root.uri}/{self.checkpoint}")
            .foreachBatch(self._ingest_batch)
        )
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def _check(self) -> tuple[PipelineState, int]:
        """The broker's state and the end of the table, after checking that this driver can ingest.

        Beginning ends the driver that is running now, so a driver that cannot replace it must not begin.
        """
        state = self._link.state()
        ingested = ingested_entry(self._root, state.store_id)
        self._register_previous(read_claim(self._root, state.store_id))
        self._store_ids.check(self.address, state)
        check_agreement(state, ingested, self._root.timeline)
        return state, ingested

    def _register_previous(self, claim: IngestClaim | None) -> None:
        """Include the broker that last fed this store in the store id check.

        It may be registered elsewhere and alive.
        """
        if claim is not None and claim.address not in ("", self.address):
            self._store_ids.add_addresses([claim.address])

    def _write_note(self, store_id: str) -> str:
        """Write a token file by which the broker verifies that the driver uses the same folder."""
        token = secrets.token_hex(16)
        write_file(self._root, self._root.at(note_path(store_id)), encode_note(token))
        return token

    def close(self) -> None:
        self._link.close()

    def _stream(self, state: PipelineState) -> DataFrame:
        settings, place = self._settings, self._place
        tasks = max(1, self._spark.sparkContext.defaultParallelism)
        options: dict[str, str | int] = {
            "namesrv": self._namesrv,
            "topic": TIMER_TOPIC,
            "broker": place.broker,
            "columns": ",".join(INGESTED_COLUMNS),
            "startingOffsets": json.dumps({place.broker: {str(place.queue_id): self._start}}),
            "maxRowsPerTrigger": settings.batch_rows,
            "minRowsPerTrigger": settings.batch_rows,
            "maxTriggerDelayMs": int(settings.every_ms),
            "maxRowsPerPartition": max(MIN_PART_ROWS, -(-settings.batch_rows // tasks)),
            # The broker removes only delivered or cancelled entries, so a gap at the start loses nothing.
            "failOnDataLoss": "false",
            "importPrecisionMs": settings.import_precision_ms,
            "epoch": state.epoch,
            "timeline": "true",
        }
        return timeline_rows(self._spark.readStream.format("latermq").options(**options).load(), state.store_id)

    def _ingest_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Process one batch: claim it, append it to the table, sync it, and only then let the broker forget it.

        The checkpoint needs no sync: a driver that begins after a power cut uses a new one.
        """
        assert self._state is not None
        start = self._start if batch_id == 0 else self._end_of(batch_id - 1)
        end = self._end_of(batch_id)
        self._check_epoch(self._state)
        claim = IngestClaim(end=end, epoch=self._state.epoch, broker=self._state.broker_name, address=self.address)
        self._register_previous(write_claim(self._root, self._state.store_id, claim))
        wrote = append(rows, self._root, self._state.store_id, start, end, self._state.min_entry)
        self._table_sync.sync()
        self._link.commit_ingest(end, self._state.epoch)
        _log.debug("entries %d to %d of %s ingested (new: %s)", start, end, self._state.broker_name, wrote)

    def _check_epoch(self, state: PipelineState) -> None:
        """Refuse to append entries that were pulled in time if another driver has begun since."""
        epoch = self._link.state().epoch
        if epoch > state.epoch:
            raise IllegalOperation(
                f"epoch {state.epoch} is over: a newer driver has epoch {epoch}",
                hint="Stop this driver, or the newer one",
            )

    def _end_of(self, batch_id: int) -> int:
        """The end offset of a batch.

        Spark writes it to the checkpoint before the batch starts, and exposes it nowhere else.
        """
        path = self._root.at(self.checkpoint, "offsets", str(batch_id))
        with file_errors(f"reading the checkpoint {path}"), self._root.files.open_input_stream(path) as file:
            lines = bytes(file.read()).decode().splitlines()
        return int(json.loads(lines[-1])[offset_key(self._place)])

    def _remove_checkpoints(self, state: PipelineState) -> None:
        """Remove the checkpoints of earlier epochs, whose drivers the broker refuses."""
        folder = self._root.at("checkpoints", state.store_id)
        selector = fs.FileSelector(folder, allow_not_found=True)
        with file_errors(f"removing old checkpoints in {folder}"):
            for found in self._root.files.get_file_info(selector):
                with contextlib.suppress(FileNotFoundError):
                    self._root.files.delete_dir(found.path)


def timeline_rows(entries: DataFrame, store_id: str) -> DataFrame:
    """Convert the source's timer topic entries to the timeline's columns."""
    named = entries.withColumnRenamed("queue_offset", "entry_offset").withColumn("store_id", F.lit(store_id))
    return with_takers(named).select(*SCHEMA.names)


def check_agreement(state: PipelineState, ingested: int, where: str) -> None:
    """Refuse a table or a store restored from an old backup, where continuing would lose timers or skip new ones.

    Entries that the table lacks and the log still holds are ingested again.
    """
    if ingested < min(state.ingest_offset, state.min_entry):
        raise CorruptStore(
            f"ingest of broker {state.broker_name} has committed all entries below {state.ingest_offset}, but {where} "
            f"ends at {ingested}, and the broker's log begins at {state.min_entry}: the far timers, cancels and moves "
            f"in entries {ingested} to {state.min_entry - 1} are missing",
            hint="Set pipeline.timeline to the folder that was used before, or restore its newest backup. If there is "
            "none, stop the broker and remove latermq.ingest from its store: ingest then continues without them",
        )
    if state.flushed_entry < ingested:
        raise CorruptStore(
            f"the log of broker {state.broker_name} ends at entry {state.flushed_entry}, "
            f"but {where} has all entries below {ingested}",
            hint="The store was restored from an old backup: restart its broker while it can read this timeline",
        )
