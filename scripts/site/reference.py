"""The pages of the reference, generated from the code: settings, commands, metrics, errors, requests and calls."""

import asyncio
import inspect
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
import typer.main

import latermq.client.session.failures  # defines further errors
from latermq.broker.metrics.metric_families import FAMILIES as BROKER_FAMILIES
from latermq.cli import app
from latermq.clock import SystemClock
from latermq.config import Config
from latermq.errors import LaterMQError
from latermq.http.endpoint import Endpoint as HttpEndpoint
from latermq.http.metrics import FIGURES
from latermq.http.process import ConsoleProcess
from latermq.pipeline.driver.driver_metrics import FAMILIES as DRIVER_FAMILIES
from latermq.server.namesrv.name_server_metrics import FAMILIES as NAME_SERVER_FAMILIES
from latermq.server.proxy.calls.call_table import CallEndpoint
from latermq.server.proxy.composition import ProxyParts
from latermq.server.proxy.proxy_metrics import FAMILIES as PROXY_FAMILIES
from latermq.server.remoting.endpoints import Endpoint
from tests.support.served_requests import broker_endpoints, name_server_endpoints

DOCS = Path(__file__).resolve().parents[2] / "docs"
_SETTING = re.compile(r"^\| `(\w+\.\w+)` \| (`[^`]*`|empty) \| (.+) \|$", re.MULTILINE)
_WIDTH = 100


def pages() -> dict[str, str]:
    """The text of each page by its path below docs/."""
    return {
        "reference/index.md": _index(),
        "reference/settings.md": settings(),
        "reference/commands.md": commands(),
        "reference/metrics.md": metrics(),
        "reference/errors.md": errors(),
        "reference/requests.md": requests(),
        "reference/calls.md": calls(),
        "reference/http.md": http(),
    }


def _index() -> str:
    rows = [
        ("[settings](settings.md)", "every setting with its type, default and environment variable"),
        ("[commands](commands.md)", "every command with its arguments and options"),
        ("[metrics](metrics.md)", "every metric of every process"),
        ("[errors](errors.md)", "every error with its code, and whether a retry can help"),
        ("[requests](requests.md)", "every request of the remoting protocol with its fields and permissions"),
        ("[calls](calls.md)", "every call of the gRPC protocol with its fields and permissions"),
        ("[HTTP API](http.md)", "every request of the HTTP API with its parameters, answers and role"),
        ("[formats](../formats/README.md)", "every file on disk and every frame on the wire, byte by byte"),
    ]
    text = "These pages are generated from the code, so they describe exactly this version."
    return f"# Reference\n\n{text}\n\n{_table(('page', 'content'), rows)}\n"


def settings() -> str:
    """Every setting of the configuration. Its meaning comes from the page for operators, which a test compares."""
    text = (DOCS / "operations.md").read_text(encoding="utf-8")
    described = {key: (default, meaning) for key, default, meaning in _SETTING.findall(text)}
    parts = ["# Settings", "[operations.md](../operations.md#settings) describes the sources of settings."]
    for section in msgspec.structs.fields(Config):
        rows = []
        for field in msgspec.structs.fields(section.type):
            key = f"{section.name}.{field.name}"
            default, meaning = described[key]
            variable = f"`LATERMQ_{section.name}_{field.name}`".upper()
            rows.append((f"`{key}`", _type_name(field.type), default, _from_reference(meaning), variable))
        parts.append(f"## {section.name}\n\n{_first_line(section.type)}")
        parts.append(_table(("setting", "type", "default", "meaning", "environment"), rows))
    return "\n\n".join(parts) + "\n"


def _type_name(kind: Any) -> str:
    choices = get_args(kind)
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    name: str = kind.__name__
    return {"str": "text", "bool": "`true`, `false`", "int": "integer", "float": "number"}.get(name, name.lower())


def commands() -> str:
    """Every command with its help, as the command line prints it."""
    parts = ["# Commands", "[cli.md](../cli.md) has examples with their output."]
    parts += _command_parts(typer.main.get_command(app), ("latermq",))
    return "\n\n".join(parts) + "\n"


def _command_parts(command: Any, path: Sequence[str]) -> Iterable[str]:
    # Typer's classes may be those of its own copy of click, so a group is recognised by what it has.
    inner: dict[str, Any] = getattr(command, "commands", {})
    if not inner:
        context = command.make_context(" ".join(path), [], resilient_parsing=True, max_content_width=_WIDTH)
        yield f"## {' '.join(path)}\n\n```text\n{command.get_help(context)}\n```"
    for name, one in inner.items():
        yield from _command_parts(one, (*path, name))


def metrics() -> str:
    """Every metric family of every process."""
    parts = ["# Metrics", "[operations.md](../operations.md#metrics) says what to watch."]
    processes: dict[str, Iterable[Any]] = {
        "Broker": BROKER_FAMILIES,
        "Name server": NAME_SERVER_FAMILIES,
        "Proxy": PROXY_FAMILIES,
        "Spark driver": DRIVER_FAMILIES,
        "Console": FIGURES,
    }
    for process, families in processes.items():
        rows = []
        for family in families:
            kind = getattr(family.kind, "value", family.kind)
            labels = [family.label] if isinstance(family.label, str) else family.label
            rows.append((f"`{family.name}`", kind, ", ".join(f"`{one}`" for one in labels if one), family.meaning))
        parts.append(f"## {process}\n\n{_table(('metric', 'kind', 'labels', 'meaning'), rows)}")
    return "\n\n".join(parts) + "\n"


def errors() -> str:
    """Every error with its code on the wire, the lowest code first."""
    found = sorted(_subclasses(LaterMQError), key=lambda error: (error.code, error.__name__))
    rows = [
        (f"`{error.__name__}`", str(error.code), "yes" if error.retriable else "no", _first_line(error))
        for error in found
    ]
    text = (
        "Each error has a message that says what happened, a hint that says what to do, and a code on the wire. "
        "`latermq.errors` and `latermq.client` define them."
    )
    return f"# Errors\n\n{text}\n\n{_table(('error', 'code', 'retry', 'meaning'), rows)}\n"


def _subclasses(base: type[LaterMQError]) -> set[type[LaterMQError]]:
    # Private and test classes are not part of the API.
    public = {one for one in base.__subclasses__() if not one.__name__.startswith("_")}
    known = {one for one in public if one.__module__ in ("latermq.errors", latermq.client.session.failures.__name__)}
    return known.union(*(_subclasses(one) for one in public))


def requests() -> str:
    """Every request of the remoting protocol."""
    parts = ["# Requests", "[protocol.md](../protocol.md) describes them, and the calls of the gRPC proxy."]
    sections = {"Name server": name_server_endpoints()}
    sections |= {f"Broker: {subject}": endpoints for subject, endpoints in broker_endpoints().items()}
    for title, endpoints in sections.items():
        rows = [_request_row(row) for row in sorted(endpoints, key=lambda row: row.code)]
        parts.append(f"## {title}\n\n{_table(('code', 'request', 'fields', 'permission'), rows)}")
    return "\n\n".join(parts) + "\n"


def _request_row(row: Endpoint) -> tuple[str, ...]:
    fields = ""
    if row.header is not None:
        fields = ", ".join(
            f"`{field.encode_name}`" + ("" if field.required else " (optional)")
            for field in msgspec.structs.fields(row.header)
        )
    return (str(int(row.code)), row.code.name, fields, "; ".join(map(str, row.access)) or "none")


def calls() -> str:
    """Every call of the gRPC proxy."""

    async def table() -> list[CallEndpoint]:
        return ProxyParts(Config(), "127.0.0.1:1", SystemClock()).table.endpoints

    rows = []
    for row in sorted(asyncio.run(table()), key=lambda row: row.name):
        fields = ", ".join(f"`{field.name}`" for field in row.request.DESCRIPTOR.fields)
        rows.append((row.name, fields, "; ".join(map(str, row.access)) or "none"))
    rows.append(("Telemetry", "`status`, `settings` and commands, both ways", "–"))
    text = "[protocol.md](../protocol.md#grpc-proxy) describes them, of `apache.rocketmq.v2.MessagingService`."
    return f"# Calls\n\n{text}\n\n{_table(('call', 'fields', 'permission'), rows)}\n"


def http() -> str:
    """Every request of the HTTP API, by subject."""

    async def endpoints() -> list[HttpEndpoint]:
        return ConsoleProcess(Config(), SystemClock()).endpoints

    parts = [
        "# HTTP API",
        "[http-api.md](../http-api.md) has examples. `/openapi.json` of a running console describes all fields.",
    ]
    by_subject: dict[str, list[HttpEndpoint]] = {}
    for row in asyncio.run(endpoints()):
        by_subject.setdefault(row.subject, []).append(row)
    for subject, rows in sorted(by_subject.items()):
        cells = [
            (
                f"`{row.method} {row.path}`",
                row.summary,
                _parameters(row),
                ", ".join(f"{status.value}" for status in row.answers),
                row.needed_role.name.lower(),
            )
            for row in rows
        ]
        parts.append(f"## {subject}\n\n{_table(('request', 'meaning', 'parameters', 'answers', 'role'), cells)}")
    return "\n\n".join(parts) + "\n"


def _parameters(row: HttpEndpoint) -> str:
    """What a request of the HTTP API may contain besides its path: query, headers and the fields of its body."""
    found = [f"`{field.encode_name}`" for kind in (row.query, row.body) for field in _struct_fields(kind)]
    return ", ".join([*found, *(f"header `{header.name}`" for header in row.headers)])


def _struct_fields(kind: Any) -> Iterable[Any]:
    return msgspec.structs.fields(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()


def _first_line(documented: type) -> str:
    return (inspect.getdoc(documented) or "").split("\n\n")[0].replace("\n", " ")


def _from_reference(text: str) -> str:
    """A cell of a page in docs/, with links that lead from docs/reference/."""
    return re.sub(
        r"\]\((#[^)]+|[\w./-]+\.md(?:#[^)]+)?)\)",
        lambda link: f"](../{'operations.md' if link[1].startswith('#') else ''}{link[1]})",
        text,
    )


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cell.replace(chr(10), ' ') for cell in line)} |" for line in lines)
