"""What programs may import: `latermq` and three modules below it, typed, and loaded only when it is used."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import latermq
import latermq.client
from latermq.cli import main
from latermq.errors import LaterMQError

ROOT = Path(__file__).resolve().parents[3]
PUBLIC_MODULES = ("latermq", "latermq.client.blocking", "latermq.errors", "latermq.pipeline")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]


def public_names(module_name: str) -> set[str]:
    """What a module exports: its `__all__`, else the classes and functions that are its own."""
    module = import_module(module_name)
    own = {name for name, value in vars(module).items() if getattr(value, "__module__", "") == module_name}
    return {name for name in getattr(module, "__all__", own) if name == "__version__" or not name.startswith("_")}


def programs() -> Iterator[tuple[str, str]]:
    """The Python that users are shown, each with where it stands."""
    for page in PAGES:
        for number, source in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL), 1):
            yield f"{page.relative_to(ROOT)}, example {number}", source
    for path in sorted((ROOT / "examples").rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text()


def private_imports(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.partition(".")[0] == "latermq"]
            yield from (name for name in names if name not in PUBLIC_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "latermq":
            module = node.module or ""
            names = [alias.name for alias in node.names if f"{module}.{alias.name}" not in PUBLIC_MODULES]
            public = public_names(module) if module in PUBLIC_MODULES else set()
            yield from (f"{module}.{name}" for name in names if name not in public)


def test_every_public_name_is_there_and_listed() -> None:
    assert all(getattr(latermq, name) is not None for name in latermq.__all__)
    assert set(latermq.__all__) <= set(dir(latermq))
    assert latermq.LaterMQError is LaterMQError


def test_the_package_exports_what_the_client_does() -> None:
    assert set(latermq.__all__) - {"LaterMQError", "__version__"} == set(latermq.client.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(latermq, "BlockingProducer")


def test_the_version_is_the_one_of_pyproject() -> None:
    assert latermq.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_command_line_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"latermq {latermq.__version__}\n"


def test_the_command_line_and_the_package_load_no_client() -> None:
    check = "import sys, latermq.cli; print([m for m in sys.modules if m.startswith(('latermq.client', 'numpy'))])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src" / "latermq" / "py.typed").is_file()


def test_programs_that_users_are_shown_import_public_names_only() -> None:
    shown = dict(programs())
    assert len(shown) > 5
    assert {place: found for place, source in shown.items() if (found := list(private_imports(source)))} == {}


def test_a_private_import_is_found() -> None:
    source = "import latermq.store\nfrom latermq import Producer, nothing\nfrom latermq.client.blocking import Admin"
    assert list(private_imports(source)) == ["latermq.store", "latermq.nothing"]
