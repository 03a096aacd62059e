"""The timeline's folder as the brokers report it, for callers that were given none."""

import socket
from pathlib import Path

from latermq.client.session.connection import split_address
from latermq.client.session.failures import NoNameServer
from latermq.errors import ConfigError
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.link import BrokerLink
from latermq.redaction import MASK


def reported_timeline(namesrv: str) -> str:
    """The folder that all brokers use. Refused if this machine cannot reach it, or if its URI has credentials.

    Brokers report a URI without its credentials, which never leave them.
    """
    uris = set()
    try:
        brokers = masters(namesrv)
    except NoNameServer as error:
        raise _unknown(error.message) from None
    for name, address in brokers.items():
        with BrokerLink(address) as link:
            uri = link.state().timeline
        if MASK in uri:
            raise _unknown(f"broker {name} does not report the credentials in its folder's URI")
        if not uri or ("://" not in uri and not _is_reachable(uri, address)):
            raise _unknown(f"the folder of broker {name} is not reachable from this machine")
        uris.add(uri)
    if len(uris) != 1:
        raise _unknown("the brokers use different folders" if uris else "no broker is running")
    return uris.pop()


def _is_reachable(path: str, address: str) -> bool:
    """Whether a broker's path is the same folder here, which holds only if the broker runs on this machine."""
    host, _ = split_address(address)
    try:
        with socket.create_server((host, 0)):
            return Path(path).parent.is_dir()
    except OSError:  # the address belongs to another machine
        return False


def _unknown(why: str) -> ConfigError:
    return ConfigError(
        f"the timeline's folder is not set: {why}",
        hint="Set --timeline URI, the option root, or LATERMQ_PIPELINE_TIMELINE to the brokers' pipeline.timeline (by "
        "default DATA/pipeline)",
    )
