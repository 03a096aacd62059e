"""The house rules that a linter does not know: sizes, names, and no clock, socket or dice in the core."""

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SRC = ROOT / "src" / "latermq"
CORE_PACKAGES = (
    "access",
    "message",
    "handover",
    "store",
    "timer",
    "group",
    "broker",
    "protocol",
    "config_json",
    "model",
)

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 90
GENERATED = "_pb2.py"
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "manager", "managers"}
# Spelled so that this file does not find itself. SCHEDULE_TOPIC_XXXX is one word to \b, so it passes.
LEFT_FOR_LATER = re.compile(r"\b(TO" r"DO|FIX" r"ME|HA" r"CK|X" r"XX+)\b")

CORE_MAY_NOT_IMPORT = {"asyncio", "random", "secrets", "selectors", "socketserver", "uvloop"}
CORE_MAY_NOT_CALL = {
    *(f"time.{name}" for name in ("time", "monotonic", "perf_counter", "process_time")),
    *(f"time.{name}_ns" for name in ("time", "monotonic", "perf_counter", "process_time")),
    "time.sleep",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
    *(f"socket.{name}" for name in ("socket", "create_connection", "create_server", "getaddrinfo", "gethostname")),
    "os.urandom",
    "uuid.uuid1",
    "uuid.uuid4",
    "numpy.random.default_rng",
    "np.random.default_rng",
}

Offence = str


def python_files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py") if not path.name.endswith(GENERATED))


def core_files() -> list[Path]:
    return python_files(*(SRC / package for package in CORE_PACKAGES))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def at(path: Path, line: int, what: str) -> Offence:
    return f"{path.relative_to(ROOT)}:{line}: {what}"


def dotted(node: ast.expr) -> str:
    """`a.b.c` for a chain of attributes, the empty string for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def imported(node: ast.AST) -> Iterator[str]:
    """The full names that an import statement brings in: `random.Random` for `from random import Random`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def core_offences(path: Path) -> Iterator[Offence]:
    for node in ast.walk(tree_of(path)):
        for name in imported(node):
            line = node.lineno if isinstance(node, ast.Import | ast.ImportFrom) else 0
            # The type of an argument that brings randomness is no randomness.
            if name.partition(".")[0] in CORE_MAY_NOT_IMPORT and name != "random.Random":
                yield at(path, line, f"imports {name}; take it as an argument")
            if name in CORE_MAY_NOT_CALL:
                yield at(path, line, f"imports {name}; take it as an argument")
        if isinstance(node, ast.Call):
            name = dotted(node.func).removeprefix("datetime.datetime").removeprefix("datetime.date")
            called = f"datetime{name}" if name.startswith(".") else name
            if called in CORE_MAY_NOT_CALL or called.endswith("open_connection"):
                yield at(path, node.lineno, f"calls {called}(); take it as an argument")
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await):
            yield at(path, node.lineno, "is async; the core is plain synchronous code")


def none_of(offences: Iterator[Offence]) -> None:
    found = list(offences)
    assert not found, "\n" + "\n".join(found)


def test_a_file_is_split_before_it_reaches_800_lines() -> None:
    counts = ((path, path.read_bytes().count(b"\n")) for path in python_files(SRC, ROOT / "tests"))
    none_of(at(path, lines, "split it by subject") for path, lines in counts if lines > MAX_FILE_LINES)


def test_a_function_of_the_product_has_at_most_90_lines() -> None:
    none_of(
        at(path, node.lineno, f"{node.name} has {length} lines")
        for path in python_files(SRC)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    )


def test_a_module_is_named_after_its_subject() -> None:
    none_of(
        at(path, 1, "the name says nothing about its subject")
        for path in python_files(SRC, ROOT / "tests")
        for part in path.relative_to(ROOT).with_suffix("").parts
        if EMPTY_NAMES & set(part.split("_"))
    )


def test_a_module_says_its_subject_in_its_first_line() -> None:
    for_docstring = ((path, tree_of(path)) for path in python_files(SRC))
    none_of(
        at(path, 1, "the first line is not a docstring with the module's subject")
        for path, tree in for_docstring
        if not ast.get_docstring(tree) or tree.body[0].lineno != 1
    )


def test_nothing_is_left_for_later() -> None:
    scripts = [
        ROOT / "Makefile",
        ROOT / ".ci" / "run",
        *(path for path in (ROOT / "scripts").rglob("*") if path.is_file() and path.suffix != ".pyc"),
    ]
    none_of(
        at(path, number, line.strip())
        for path in [*python_files(SRC, ROOT / "tests"), *scripts]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if LEFT_FOR_LATER.search(line)
    )


def test_every_except_says_what_it_catches() -> None:
    none_of(
        at(path, node.lineno, "a bare except")
        for path in python_files(SRC, ROOT / "tests")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ExceptHandler) and node.type is None
    )


def test_only_the_command_line_prints() -> None:
    none_of(
        at(path, node.lineno, "prints; log it or return it")
        for path in python_files(SRC)
        if not path.is_relative_to(SRC / "cli")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and dotted(node.func) == "print"
    )


def test_the_core_reads_no_clock_opens_no_socket_and_rolls_no_dice() -> None:
    none_of(offence for path in core_files() for offence in core_offences(path))


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time\ntime.monotonic_ns()",
        "from time import time_ns",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime\ndatetime.now()",
        "import random",
        "from random import choice",
        "from asyncio import sleep",
        "import asyncio.events",
        "import socket\nsocket.create_connection(('localhost', 1))",
        "reader = streams.open_connection('localhost', 1)",
        "async def pull(): ...",
    ],
)
def test_the_rule_for_the_core_finds(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    module = tmp_path / "module.py"
    module.write_text(source)
    assert list(core_offences(module))


def test_the_rule_for_the_core_lets_arguments_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    module = tmp_path / "module.py"
    module.write_text("from random import Random\ndef draw(clock, dice: Random): return clock.now_ms(), dice.random()")
    assert list(core_offences(module)) == []


def project_files() -> Iterator[Path]:
    """What a clone would hold: no environment, cache or build output."""
    made = {".git", "__pycache__", "target", "build", "dist", "data", "node_modules"}
    for folder, inside, names in os.walk(ROOT):
        inside[:] = [name for name in inside if name not in made and (not name.startswith(".") or name == ".ci")]
        yield from (Path(folder) / name for name in names)


def test_no_file_names_the_place_where_the_project_lies() -> None:
    if len(ROOT.parts) < 3:
        pytest.skip(f"{ROOT} is too short a path to be told from an ordinary word")
    place = re.compile(re.escape(os.fsencode(ROOT)) + rb"(?![\w-])")
    none_of(at(path, 1, f"names {ROOT}") for path in project_files() if place.search(path.read_bytes()))
