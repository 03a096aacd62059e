"""The root folder of a scheduling job: next to the timeline, whose folder the brokers report if it is not given."""

import logging
import os
from pathlib import Path

from latermq.client.session.failures import AccessRefused
from latermq.pipeline.bulk.bulk_job import BROKERS, ROOT_VARIABLE, find_root, job_folder, read_json, write_first
from latermq.pipeline.driver.reported_timeline import reported_timeline
from latermq.pipeline.timeline.root import Root, open_root

_log = logging.getLogger("latermq.pipeline")


def find_job_root(root: Root | str | None, namesrv: str, job: str) -> Root:
    """The pipeline's folder: as given, else from the environment, else the one that the brokers use."""
    if root or os.environ.get(ROOT_VARIABLE):
        return find_root(root)
    try:
        found = open_root(reported_timeline(namesrv))
    except AccessRefused as error:
        error.hint += ". Or set the job's folder: the option root, --timeline, or " + ROOT_VARIABLE
        raise
    _adopt(found, job)
    return found


def _adopt(root: Root, job: str) -> None:
    """Adopt a job that an older version stored in the user's own folder, which was the default then."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    old = open_root(f"{state}/latermq")
    path = f"{job_folder(root, job)}/{BROKERS}"
    if read_json(root, path) is not None:
        return
    brokers = read_json(old, f"{job_folder(old, job)}/{BROKERS}")
    if brokers is not None:
        write_first(root, path, brokers)
        _log.info("job %s moved from %s to %s", job, old.uri, root.uri)
