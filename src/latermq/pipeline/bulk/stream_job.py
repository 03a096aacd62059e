"""The state of a stream's job: its query, and the last batch whose rows are all scheduled.

A batch that Spark repeats after a crash has the same number. If it is finished here, it is not sent again. If it is
not, its folder knows the rows that were sent. Once a batch is finished, nothing else about it is kept.
"""

from contextlib import suppress

import msgspec
from pyarrow import fs

from latermq.errors import CorruptStore, InvalidParameter
from latermq.pipeline.bulk.bulk_job import job_folder, read_json, write_json
from latermq.pipeline.timeline.root import Root, file_errors

PROGRESS, BATCHES = "stream.json", "batches"


class StreamProgress(msgspec.Struct, frozen=True):
    """A query's identity in its checkpoint, and its last finished batch."""

    query: str
    finished: int

    def covers(self, query: str, batch: int) -> bool:
        return query == self.query and batch <= self.finished


def batch_folder(root: Root, job: str, batch: int) -> str:
    """The folder of an unfinished batch."""
    return f"{job_folder(root, job)}/{BATCHES}/{batch}"


def read_progress(root: Root, job: str) -> StreamProgress | None:
    """The progress of a job; None if no batch is finished."""
    path = f"{job_folder(root, job)}/{PROGRESS}"
    found = read_json(root, path)
    if found is None:
        return None
    try:
        return msgspec.convert(found, StreamProgress)
    except msgspec.ValidationError as error:
        raise CorruptStore(
            f"{path}: {error}", hint="Start the stream with another job and another checkpoint"
        ) from error


def check_query(progress: StreamProgress | None, query: str, job: str) -> None:
    """Refuse a second query: its batches have the numbers of other rows, which would pass for finished."""
    if progress is not None and progress.query != query:
        raise InvalidParameter(
            f"job {job} belongs to the streaming query {progress.query}, not to {query}",
            hint="Restore the checkpoint of that query, or set the option job to a new name. Rows that the other query "
            "has scheduled are not recognised under a new name",
        )


def finish_batch(root: Root, job: str, query: str, batch: int) -> None:
    """Record that all rows of a batch are scheduled, and remove what was kept to repeat it."""
    write_json(root, f"{job_folder(root, job)}/{PROGRESS}", StreamProgress(query, batch))
    folder = f"{job_folder(root, job)}/{BATCHES}"
    with file_errors(folder):
        found = root.files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        for info in found:
            if info.base_name.isdecimal() and int(info.base_name) <= batch:
                with suppress(FileNotFoundError):
                    root.files.delete_dir(info.path)
