"""The root folder of a scheduling job: next to the timeline, whose folder the brokers report if it is not given."""

import logging
import os
import socket
from pathlib import Path

from latermq.client.session.connection import split_address
from latermq.errors import ConfigError
from latermq.pipeline.bulk.bulk_job import BROKERS, ROOT_VARIABLE, find_root, job_folder, read_json, write_first
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.root import Root, open_root
from latermq.redaction import MASK

_log = logging.getLogger("latermq.pipeline")


def find_job_root(root: Root | str | None, namesrv: str, job: str) -> Root:
    """The pipeline's folder: as given, else from the environment, else the one that the brokers use."""
    if root or os.environ.get(ROOT_VARIABLE):
        return find_root(root)
    found = open_root(_find_timeline(namesrv))
    _adopt(found, job)
    return found


def _find_timeline(namesrv: str) -> str:
    uris = set()
    for name, address in masters(namesrv).items():
        with BrokerLink(address) as link:
            uri = link.state().timeline
        if MASK in uri:
            raise _unknown_root(f"broker {name} does not report the credentials in its folder's URI")
        if not uri or ("://" not in uri and not _is_reachable(uri, address)):
            raise _unknown_root(f"the folder of broker {name} is not reachable from this machine")
        uris.add(uri)
    if len(uris) != 1:
        raise _unknown_root("the brokers use different folders" if uris else "no broker is running")
    return uris.pop()


def _is_reachable(path: str, address: str) -> bool:
    """Whether a broker's path is the same folder here, which holds only if the broker runs on this machine."""
    host, _ = split_address(address)
    try:
        with socket.create_server((host, 0)):
            return Path(path).parent.is_dir()
    except OSError:  # the address belongs to another machine
        return False


def _unknown_root(why: str) -> ConfigError:
    return ConfigError(
        f"the timeline's folder, which holds the jobs, is not set: {why}",
        hint=f"Set --timeline URI, the option root, or {ROOT_VARIABLE} to the brokers' pipeline.timeline (by default "
        "DATA/pipeline)",
    )


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
