"""Network addresses: only of this machine, its own, to connect to, and which count as one client."""

import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """Whether a listening address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host or None, 0, flags=socket.AI_PASSIVE)
    except OSError:  # listening on it fails and reports the error
        return True
    return all(ipaddress.ip_address(str(address[4][0])).is_loopback for address in found)


def own_address() -> str:
    """The address at which other machines can probably reach this one; loopback if there is no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: the kernel only chooses the route
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
        return address


def connectable(address: str) -> str:
    """Return an address to connect to, `host:port`. A wildcard address becomes the loopback address."""
    return reached_from("127.0.0.1", address)


def reached_from(own: str, address: str) -> str:
    """Return an address to connect to, `host:port`, for a client that reaches this machine as `own`."""
    host, _, port = address.rpartition(":")
    return f"{own}:{port}" if host in ("0.0.0.0", "::", "[::]", "") else address


def network_of(ip: str) -> str:
    """Return what counts as one address: for IPv6 the /64 prefix, because a single customer gets a whole /64."""
    return str(ipaddress.ip_network((ip, 64), strict=False)) if ":" in ip else ip


def plain_ip(ip: str) -> str:
    """Return an address without its scope, and an IPv4-mapped IPv6 address as IPv4."""
    ip = ip.partition("%")[0]
    return ip[7:] if ip.startswith("::ffff:") and "." in ip else ip
