"""`latermq config`: shows settings with their sources, and checks them without starting anything."""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latermq.cli.options import ConfigFile, Json, Settings, UsageError
from latermq.cli.output import print_note, print_rows
from latermq.redaction import MASK, redacted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from latermq.config import LoadedConfig
    from latermq.setting_sources import Problem

app = typer.Typer(help="Show the settings and where each comes from, and check them.", no_args_is_help=True)

_COLUMNS = {"setting": "setting", "value": "value", "source": "source"}
_PROBLEM_COLUMNS = {"place": "place", "problem": "problem", "advice": "advice"}
# `serve` starts a driver unless told otherwise; a broker alone keeps far timers.
_SERVE_DEFAULTS = {"pipeline.enabled": "default; true for `latermq serve`"}


@app.command("show")
def show(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Settings or sections; default: all.")
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that differ from their defaults.")] = False,
    config: ConfigFile = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Show each setting with its value and its source.

    The source is "default", the line of the file, the environment variable, or --set. The last of these wins. Secrets
    are shown as ***. `latermq serve` and the other server commands, given the same options, run with these values.

    Example: latermq config show store --config /etc/latermq.toml
    """
    from latermq.config import SETTING_TYPES, load_config, load_with_sources

    wanted = _wanted(names or [], SETTING_TYPES)
    loaded = load_with_sources(config, settings=settings or ())
    if loaded.config is None:
        load_config(config, settings=settings or ())  # raises
    rows = [row for row in _rows(loaded, wanted) if not changed or row["is_changed"]]
    if not json:
        rows = [row | {"value": row["value"] or None} for row in rows]
    print_rows(rows, _COLUMNS, as_json=json, empty="all settings have their defaults")


@app.command("check")
def check(config: ConfigFile = None, settings: Settings = None, json: Json = False) -> None:
    """Check settings without starting anything: all of them, with every problem found. Exits with 2 if there is one.

    Checks names, values and contradictions in the file, the environment and --set.

    Example: latermq config check --config /etc/latermq.toml
    """
    from latermq.config import SECTIONS, load_with_sources
    from latermq.setting_sources import unknown_variables

    loaded = load_with_sources(config, settings=settings or ())
    ignored = unknown_variables(SECTIONS, os.environ)
    rows = [*_problem_rows(loaded.problems, "error"), *_problem_rows(ignored, "warning")]
    if rows or json:
        print_rows(rows, _PROBLEM_COLUMNS, as_json=json, empty="")
    if loaded.problems:
        raise typer.Exit(2)
    given = [one.source for one in loaded.given.values()]
    sources = ((f"from {config}", "file"), ("from the environment", "environment"), ("from --set", "option"))
    counts = [f"{given.count(kind)} {source}" for source, kind in sources if kind in given]
    print_note(f"the settings are valid: {', '.join(counts)}" if counts else "the settings are valid: all are defaults")


def _wanted(names: list[str], known: "Iterable[str]") -> set[str]:
    """The settings that are named, or are in a named section."""
    import difflib

    known = list(known)
    found: set[str] = set()
    for name in names:
        matching = {one for one in known if one == name or one.startswith(f"{name}.")}
        if not matching:
            sections = {one.partition(".")[0] for one in known}
            near = difflib.get_close_matches(name, [*known, *sections], 1)
            raise UsageError(f"there is no setting or section {name}" + (f"; did you mean {near[0]}?" if near else ""))
        found |= matching
    return found or set(known)


def _rows(loaded: "LoadedConfig", wanted: set[str]) -> "Iterator[dict[str, Any]]":
    from latermq.config import SETTING_TYPES, Config

    defaults = Config()
    for name in SETTING_TYPES:
        if name not in wanted:
            continue
        section, _, key = name.partition(".")
        value, default = getattr(getattr(loaded.config, section), key), getattr(getattr(defaults, section), key)
        given = loaded.given.get(name)
        source = given.place if given is not None else _SERVE_DEFAULTS.get(name, "default")
        if name in loaded.fitted:
            source = "shortened to fit pipeline.near_horizon"
        text = _shown(name, value)
        row = {"setting": name, "value": text, "source": source, "is_changed": value != default}
        yield row | {"default": _shown(name, default)}


def _shown(name: str, value: object) -> str:
    """The value as `--set` accepts it, in the largest unit that has no fraction."""
    from latermq.config import SECRET_SETTINGS, Duration, Size

    if name in SECRET_SETTINGS and value:
        return MASK
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Duration):
        return _in_units(value, {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}, "ms")
    if isinstance(value, Size):
        return _in_units(value, {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}, "B")
    return redacted(str(value))


def _in_units(number: int, units: "Mapping[str, int]", smallest: str) -> str:
    unit = next((unit for unit, size in units.items() if number and number % size == 0), smallest)
    return f"{number // units.get(unit, 1)}{unit}"


def _problem_rows(problems: "Iterable[Problem]", severity: str) -> list[dict[str, Any]]:
    return [
        {
            "severity": severity,
            "place": redacted(one.place) or "-",
            "setting": one.setting,
            "problem": redacted(one.message) if severity == "error" else f"warning: {one.message}",
            "advice": one.hint,
        }
        for one in problems
    ]
