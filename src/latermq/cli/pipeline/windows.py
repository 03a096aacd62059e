"""`latermq pipeline windows`: shows the unfinished windows of brokers, and repairs or skips one."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latermq.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from latermq.cli.output import counted, print_note, print_rows
from latermq.cli.views.message_rows import moment

if TYPE_CHECKING:
    from latermq.pipeline.driver.link import BrokerLink
    from latermq.protocol.remoting.pipeline import WindowReport

_WAIT_S = 60.0
_LOOK_EVERY_S = 0.3
_COLUMNS = {
    "broker": "broker",
    "window": "window",
    "due_from": "due from",
    "due_until": "until",
    "state": "state",
    "attempts": "attempts",
    "damaged": "damaged",
    "rows": "rows",
    "dead_letters": "dead letters",
    "error": "last error",
}


def windows(
    repair: Annotated[
        int | None,
        typer.Option(
            "--repair", metavar="N", help="Check all attempts of window N again; build the window if none is good."
        ),
    ] = None,
    skip: Annotated[
        int | None,
        typer.Option("--skip", metavar="N", help="Skip window N: its timers become dead letters."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation before skipping a window.")] = False,
    broker: Annotated[str | None, typer.Option("--broker", metavar="NAME", help="Only windows of this broker.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Show unfinished windows, or repair or skip one. Example: latermq pipeline windows --repair 17"""
    if repair is not None and skip is not None:
        raise typer.BadParameter("--repair and --skip are mutually exclusive")
    from latermq.pipeline.driver.link import BrokerLink

    addresses = _addresses(namesrv, broker)
    if repair is not None or skip is not None:
        if len(addresses) > 1:
            raise typer.BadParameter(f"specify --broker {' or '.join(addresses)}")
        with BrokerLink(next(iter(addresses.values()))) as link:
            if repair is not None:
                link.repair_window(repair)
                print_note(f"window {repair} will be checked again, and built if it has no good attempt")
            elif skip is not None:
                _skip(link, skip, is_agreed=yes)
    rows: list[dict[str, Any]] = []
    for address in addresses.values():
        with BrokerLink(address) as link:
            reports = link.window_reports()
        rows += [_row(reports.broker_name, report) for report in reports.windows]
    print_rows(rows, _COLUMNS, as_json=json, empty="no unfinished windows: no far timer is due soon")


def _addresses(namesrv: str, broker: str | None) -> dict[str, str]:
    from latermq.client.session.failures import NoBroker
    from latermq.pipeline.driver.brokers import masters

    found = {name: address for name, address in masters(namesrv).items() if broker in (None, name)}
    if not found:
        named = f"no broker {broker!r}" if broker else "no brokers"
        raise NoBroker(f"the name server has {named}", hint="Check that the broker is running and registered")
    return found


def _skip(link: "BrokerLink", number: int, *, is_agreed: bool) -> None:
    report = _find(link, number)
    if report is not None and report.state != "skipped":
        print_note(
            f"window {number}, due from {moment(report.from_ms)} until {moment(report.until_ms)}, is {report.state}. "
            "Its timers will not be delivered but written to rmq_sys_timer_dlq"
        )
        if not is_agreed:
            typer.confirm("Skip it?", abort=True, err=True)
    link.skip_window(number)
    give_up_s = time.monotonic() + _WAIT_S
    while True:
        report = _find(link, number)
        if report is None or report.state == "skipped" or time.monotonic() > give_up_s:
            break
        time.sleep(_LOOK_EVERY_S)
    if report is None or report.state != "skipped":
        print_note(f"window {number} will be skipped when it is due; its dead letters are not written yet")
        return
    letters = counted(report.letters, "dead letter")
    print_note(f"window {number} skipped: {letters}, {report.unread} of them without a body")


def _find(link: "BrokerLink", number: int) -> "WindowReport | None":
    return next((one for one in link.window_reports().windows if one.number == number), None)


def _row(broker: str, report: "WindowReport") -> dict[str, Any]:
    return {
        "broker": broker,
        "window": report.number,
        "due_from": moment(report.from_ms),
        "due_until": moment(report.until_ms),
        "due_from_ms": report.from_ms,
        "due_until_ms": report.until_ms,
        "state": report.state,
        "attempt": report.attempt,
        "attempts": report.attempts,
        "damaged": list(report.damaged),
        "damage": report.damaged,
        "rows": report.rows,
        "dead_letters": report.letters,
        "without_body": report.unread,
        "error": report.error,
    }
