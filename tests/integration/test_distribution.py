"""The wheel in an empty environment: it holds everything, depends on nothing else, and its broker delivers a timer."""

import email
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from email.message import Message
from pathlib import Path

import pytest

from tests.support.needs import need_tool
from tests.support.serving import serving

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def uv() -> str:
    """The uv of set-up, which need not be on the PATH."""
    installed = ROOT / ".tools" / "bin" / "uv"
    return str(installed) if installed.is_file() else need_tool("uv", "it builds and installs the wheel")


@pytest.fixture(scope="module")
def dist(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the source distribution and the wheel, which uv builds from it."""
    folder = tmp_path_factory.mktemp("dist")
    # With the build tools of this environment, as set-up does: the lock names them, and nothing is fetched.
    _run(uv, "build", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(uv: str, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and the dependencies that the lock names, outside the tree."""
    folder = tmp_path_factory.mktemp("installed")
    # As set-up does: what the lock names by address and hash is in uv's cache since then, so nothing is fetched.
    sync = (uv, "sync", "--locked", "--no-default-groups", "--no-install-project", "--python", sys.executable)
    _run(*sync, cwd=ROOT, env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder / "venv")})
    _run(uv, "pip", "install", "--python", folder / "venv", "--no-deps", wheel, cwd=folder)
    return folder / "venv"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without the source, and no variable that leads to it."""
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_string(archive.read(name).decode())


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("latermq/")}
    source = (path for path in (ROOT / "src" / "latermq").rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert packed == {str(path.relative_to(ROOT / "src")) for path in source}
    assert "latermq/py.typed" in packed


def test_the_source_distribution_holds_what_the_tests_need(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "Makefile", "uv.lock", "scripts/setup", "tests/conftest.py"} <= names


def test_the_metadata_says_what_pyproject_does(wheel: Path) -> None:
    metadata = _metadata(wheel)
    assert metadata["Name"] == PROJECT["name"]
    assert metadata["Version"] == PROJECT["version"]
    assert metadata["Summary"] == PROJECT["description"]
    assert metadata["License-Expression"] == PROJECT["license"]
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert metadata["Keywords"].split(",") == PROJECT["keywords"]
    assert metadata.get_all("Classifier") == PROJECT["classifiers"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text()
    required = metadata.get_all("Requires-Dist", [])
    assert len([line for line in required if "extra ==" not in line]) == len(PROJECT["dependencies"])
    assert len([line for line in required if "extra == 'pipeline'" in line]) == len(
        PROJECT["optional-dependencies"]["pipeline"]
    )


def test_the_installed_broker_delivers_a_timer(uv: str, environment: Path, elsewhere: Path) -> None:
    program = environment / "bin" / "latermq"
    _run(uv, "pip", "check", "--python", environment, cwd=elsewhere)
    assert _run(program, "--version", cwd=elsewhere) == f"latermq {PROJECT['version']}\n"
    with serving(elsewhere / "data", program=(str(program),)) as server:
        client = {**os.environ, "NAMESRV_ADDR": server.namesrv}
        assert str(ROOT) not in Path(f"/proc/{server.broker_pid()}/cmdline").read_text()
        _run(program, "send", "orders", "later", "--delay", "1s", cwd=elsewhere, env=client)
        consume = ("consume", "orders", "--group", "billing", "--from", "first", "--count", "1", "--timeout", "20s")
        assert "later" in _run(program, *consume, cwd=elsewhere, env=client)


def test_the_plain_wheel_says_what_the_pipeline_needs(environment: Path, elsewhere: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("without Java it says that first")
    command = [str(environment / "bin" / "latermq"), "pipeline", "run", "--timeline", str(elsewhere / "timeline")]
    done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "pyspark, delta, deltalake, pandas, pyarrow not installed" in done.stderr
    assert "latermq[pipeline]" in done.stderr
