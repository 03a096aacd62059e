"""The connections of the console to name servers and brokers, shared by all requests."""

from latermq.client import Admin
from latermq.config import Config


class Brokers(Admin):
    """The admin client, with requests of LaterMQ's brokers that it does not have."""


def name_servers_of(config: Config) -> str:
    """Return the addresses of the name servers."""
    server = config.server
    return config.http.namesrv or server.namesrv or f"{server.host}:{server.namesrv_port}"


def open_brokers(config: Config) -> Brokers:
    """Return the connections, to be started."""
    return Brokers(name_servers_of(config), request_timeout_s=config.http.broker_timeout / 1000)
