"""`latermq acl refusals`: what a broker refused, or would refuse, as its audit log tells it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from latermq.cli.options import Json
from latermq.cli.output import print_rows
from latermq.errors import ConfigError

_REFUSED = ("refused", "would be refused")
_COLUMNS = {
    "result": "result", "user": "user", "from": "from", "request": "action", "resource": "resource", "count": "count",
    "reason": "reason",
}  # fmt: skip


class _Access(msgspec.Struct):
    action: str = ""
    resource: str = ""


class _Line(msgspec.Struct, rename={"source": "from"}):
    """A line about one administrative request, or the count of others."""

    result: str
    user: str = ""
    source: str = ""
    request: str = ""
    action: str = ""
    resource: str = ""
    reason: str = ""
    count: int = 1
    access: list[_Access] = []


class _Refusal(NamedTuple):
    result: str
    user: str
    source: str
    request: str
    resource: str
    reason: str


def refusals(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Data directory of the broker.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Folder of the audit log; default: audit in --data.")
    ] = None,
    json: Json = False,
) -> None:
    """List requests that were refused, or with access.mode=log would be, the most frequent first.

    Reads the audit log on this machine, which is written every audit.flush_every.

    Example: latermq acl refusals --data /var/lib/latermq
    """
    found: Counter[_Refusal] = Counter()
    for line in _lines(folder or data / "audit"):
        if line.result in _REFUSED:
            found[_refusal(line)] += line.count
    rows: list[dict[str, Any]] = [
        {
            "result": one.result,
            "user": one.user or None,
            "from": one.source,
            "request": one.request,
            "resource": one.resource or None,
            "count": count,
            "reason": one.reason,
        }
        for one, count in found.most_common()
    ]
    print_rows(rows, _COLUMNS, as_json=json, empty="nothing was refused")


def _refusal(line: _Line) -> _Refusal:
    first = line.access[0] if line.access else _Access(line.action, line.resource)
    host = line.source.rpartition(":")[0] if line.request else line.source  # requests have a port, counts have none
    return _Refusal(line.result, line.user, host, line.request or first.action, first.resource, line.reason)


def _lines(folder: Path) -> Iterator[_Line]:
    decode = msgspec.json.Decoder(_Line).decode
    try:
        files = sorted(file for file in folder.iterdir() if ".jsonl" in file.name)
        for file in files:
            with file.open("rb") as opened:
                for text in opened:
                    try:
                        yield decode(text)
                    except msgspec.DecodeError:
                        continue  # a crash can leave a part of a line
    except OSError as error:
        raise ConfigError(
            f"cannot read the audit log in {folder}: {error.strerror}",
            hint="Run the command as the broker's user, on its machine; --folder is the setting audit.folder",
        ) from None
