"""`latermq cert`: makes the certificates of a cluster."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latermq.cli.options import Json, UsageError
from latermq.cli.output import print_note, print_rows
from latermq.errors import ConfigError, NoPermission

if TYPE_CHECKING:
    from latermq.tls.authority import CertificateRequest, Issued

app = typer.Typer(help="Make certificates for TLS.", no_args_is_help=True)

DEFAULT_DAYS = 365
_COLUMNS = {"certificate": "certificate", "key": "key", "for": "for", "until": "valid until"}


@app.command("new")
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files; created if missing.")],
    servers: Annotated[
        list[str] | None,
        typer.Option("--server", metavar="HOST[,HOST…]", help="A server by its names and addresses; repeatable."),
    ] = None,
    users: Annotated[
        list[str] | None,
        typer.Option("--user", metavar="NAME", help="A user who connects with mutual TLS; repeatable."),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=1, max=3650, help="Days until servers and users need new ones.")
    ] = DEFAULT_DAYS,
    json: Json = False,
) -> None:
    """Make certificates for servers and users, and an authority for them if the folder has none.

    Only the owner can read the files, and existing ones are never overwritten. A server's certificate is
    also valid for localhost. Prints the settings to use.

    Example: latermq cert new certs --server broker-1.example,10.0.0.5 --user alice
    """
    requests = [*_server_requests(servers or []), *_user_requests(users or [])]
    if not requests:
        raise UsageError("specify --server or --user, for example --server broker-1.example,10.0.0.5")

    from latermq.tls.authority import issue

    try:
        issued = issue(folder, requests, time.time_ns() // 1_000_000, days)
    except OSError as error:
        raise ConfigError(f"cannot write to {error.filename or folder}: {error.strerror or error}") from None
    print_rows(map(_row, issued), _COLUMNS, as_json=json, empty="")
    if not json:
        _print_advice(issued[0], has_servers=bool(servers), has_users=bool(users))


def _server_requests(servers: list[str]) -> "list[CertificateRequest]":
    from latermq.tls.authority import server_request

    return [server_request([host.strip() for host in server.split(",") if host.strip()]) for server in servers]


def _user_requests(users: list[str]) -> "list[CertificateRequest]":
    from latermq.access.users import check_user_name
    from latermq.tls.authority import user_request

    try:
        return [user_request(check_user_name(user)) for user in users]
    except NoPermission as error:
        raise ConfigError(error.message) from None


def _row(one: "Issued") -> dict[str, str]:
    made_for = one.subject if one.is_new else f"{one.subject}, in use before"
    return {
        "certificate": str(one.files.certificate),
        "key": str(one.files.key),
        "for": made_for,
        "until": f"{one.until:%Y-%m-%d}",
    }


def _print_advice(authority: "Issued", *, has_servers: bool, has_users: bool) -> None:
    ca = authority.files.certificate.name
    print_note("")
    if has_servers:
        print_note(f"On each server: its own certificate and key, and {ca} (not ca.key). Settings:")
        print_note("  tls.mode = enforcing")
        print_note("  tls.cert = server-….pem   tls.key = server-….key")
        print_note(f"  tls.ca = {ca}         tls.client_ca = {ca}")
        print_note(f"Clients of LaterMQ: --tls-ca {ca}, or LATERMQ_TLS_CA={ca}")
    if has_users:
        print_note(
            "For each user: --tls-cert user-….pem --tls-key user-….key, or LATERMQ_TLS_CERT and LATERMQ_TLS_KEY;"
        )
        print_note(f"servers accept them with tls.client_ca = {ca}")
    print_note(f"Keep {authority.files.key} away from servers: who has it can pretend to be any server and any user")
