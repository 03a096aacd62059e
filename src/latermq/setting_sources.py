"""Where settings come from: their values as given by a TOML file, the environment and `--set`, each with its place."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from latermq.errors import ConfigError

ENVIRONMENT_PREFIX = "LATERMQ_"

Source = Literal["default", "file", "environment", "option"]
Sections = Mapping[str, tuple[str, ...]]  # section → its keys

_HEADER = re.compile(r"""\s*\[\s*["']?([\w-]+)["']?\s*\]""")
_KEY = re.compile(r"""\s*["']?([\w-]+)["']?\s*(?:\.\s*["']?([\w-]+)["']?\s*)?=""")
_INLINE_KEY = re.compile(r"""[{,]\s*["']?([\w-]+)["']?\s*=""")
_SIMILAR = 0.7  # of difflib's ratio: `retenton` is similar to `retention`, `colour` to nothing


class Given(NamedTuple):
    """A value as it was given. The place is for users: `latermq.toml:7`, `LATERMQ_STORE_FLUSH`, `--set`."""

    value: Any
    source: Source
    place: str = ""


class Problem(NamedTuple):
    """Something wrong with a setting. The place is empty if it concerns several."""

    place: str
    setting: str
    message: str
    hint: str = ""


class GivenSettings(NamedTuple):
    """The last value given for each setting, by `section.key`, and what cannot be a setting."""

    values: dict[str, Given]
    problems: list[Problem]


def gather(
    sections: Sections,
    file: Path | None,
    environment: Mapping[str, str],
    settings: Iterable[str],
    defaults: Mapping[str, Mapping[str, Any]],
) -> GivenSettings:
    """Merge all sources; the last wins. Raises ConfigError if the file cannot be read."""
    given = GivenSettings({}, [])
    for section, keys in defaults.items():
        given.values.update({f"{section}.{key}": Given(value, "default") for key, value in keys.items()})
    if file is not None:
        _add_file(given, sections, file)
    for section, names in sections.items():
        for key in names:
            variable = variable_of(section, key)
            if variable in environment:
                given.values[f"{section}.{key}"] = Given(environment[variable], "environment", variable)
    for setting in settings:
        path, separator, text = setting.partition("=")
        section, dot, key = path.strip().partition(".")
        if not (separator and dot):
            raise ConfigError(f"setting {setting!r} is not valid", hint="Write --set section.key=value")
        _add(given, sections, section, key, Given(text.strip(), "option", "--set"))
    return given


def variable_of(section: str, key: str) -> str:
    """The environment variable of a setting."""
    return f"{ENVIRONMENT_PREFIX}{section}_{key}".upper()


def unknown_variables(sections: Sections, environment: Mapping[str, str]) -> list[Problem]:
    """Variables that begin like those of a section and set nothing. Servers ignore them."""
    known = {variable_of(section, key): f"{section}.{key}" for section, keys in sections.items() for key in keys}
    prefixes = tuple(f"{ENVIRONMENT_PREFIX}{section}_".upper() for section in sections)
    found = []
    for variable in sorted(environment):
        if variable.startswith(prefixes) and variable not in known:
            near = difflib.get_close_matches(variable, known, 1, _SIMILAR)
            hint = f"Did you mean {near[0]}?" if near else "Unset it if it is not meant for LaterMQ"
            found.append(Problem(variable, "", "this variable sets nothing", hint))
    return found


def _add_file(given: GivenSettings, sections: Sections, file: Path) -> None:
    text, tables = _read_toml(file)
    lines = _lines_of(text)
    for section, keys in tables.items():
        place = f"{file}:{lines[section, '']}" if (section, "") in lines else str(file)
        if not isinstance(keys, dict):
            hint = f"Write [{section}], and its keys below" if section in sections else "Write it below its [section]"
            given.problems.append(Problem(place, section, f"{section} is not a section", hint))
            continue
        if section not in sections and not keys:
            given.problems.append(Problem(place, section, f"there is no section {section}", _section_hint(sections)))
        for key, value in keys.items():
            line = lines.get((section, key))
            _add(given, sections, section, key, Given(value, "file", f"{file}:{line}" if line else str(file)))


def _add(given: GivenSettings, sections: Sections, section: str, key: str, value: Given) -> None:
    name = f"{section}.{key}"
    if key in sections.get(section, ()):
        given.values[name] = value
        return
    near = _nearest(sections, section, key)
    hint = f"Did you mean {near}?" if near else _section_hint(sections)
    if not near and section in sections:
        hint = f"`latermq config show {section}` lists the settings of this section"
    given.problems.append(Problem(value.place, name, f"there is no setting {name}", hint))


def _section_hint(sections: Sections) -> str:
    return f"Sections: {', '.join(sections)}"


def _nearest(sections: Sections, section: str, key: str) -> str | None:
    """The setting that was probably meant: a similar key of this section, the same key of another, a similar name."""
    own = difflib.get_close_matches(key, sections.get(section, ()), 1, _SIMILAR)
    if own:
        return f"{section}.{own[0]}"
    same = [name for name, keys in sections.items() if key in keys]
    if same:
        return f"{max(same, key=lambda name: difflib.SequenceMatcher(None, name, section).ratio())}.{key}"
    names = [f"{name}.{one}" for name, keys in sections.items() for one in keys]
    return next(iter(difflib.get_close_matches(f"{section}.{key}", names, 1, _SIMILAR)), None)


def _read_toml(file: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = file.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}", hint="Check the path after --config") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{file} is not TOML: {error}", hint='Write sections as [store] and keys as flush = "sync"'
        ) from None
    except (UnicodeDecodeError, RecursionError) as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "nested too deeply"
        raise ConfigError(f"{file} is not TOML: {reason}", hint="Check the path after --config") from None


def _lines_of(text: str) -> dict[tuple[str, str], int]:
    """The line of each section (its key is empty) and key in TOML text, which is known to be valid."""
    lines: dict[tuple[str, str], int] = {}
    section, quotes = "", ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not quotes:
            if header := _HEADER.match(line):
                section = header[1]
                lines.setdefault((section, ""), number)
            elif key := _KEY.match(line):
                path = (key[1], key[2] or "") if not section else (section, key[1])
                lines.setdefault(path, number)
                if not section and not key[2]:  # perhaps an inline table
                    lines.update({(key[1], inner[1]): number for inner in _INLINE_KEY.finditer(line)})
        quotes = _open_quotes(line, quotes)
    return lines


def _open_quotes(line: str, quotes: str) -> str:
    """The quotes of a string over several lines that is open after this line, if one is."""
    for found in re.findall(r'"""|' + "'''", line):
        if not quotes:
            quotes = found
        elif found == quotes:
            quotes = ""
    return quotes
