"""What set-up fetches is what it was when it was chosen: uv, the jars of Delta Lake, and what builds the project."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from latermq.errors import ConfigError
from latermq.pipeline.spark import jars

ROOT = Path(__file__).resolve().parents[2]
UV = re.search(r"^uv==(\S+)", (ROOT / "scripts" / "uv.txt").read_text(), re.MULTILINE)


def _wheel(folder: Path, version: str) -> None:
    """A package that says it is uv, and is not."""
    folder.mkdir()
    with zipfile.ZipFile(folder / f"uv-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("uv.py", "print('a stranger runs')\n")
        info = f"uv-{version}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: uv\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_set_up_refuses_a_uv_of_another_hash(tmp_path: Path) -> None:
    if shutil.which("uv", path="/usr/bin:/bin"):
        pytest.skip("the system has a uv, so set-up would not install one")
    assert UV is not None
    tree = tmp_path / "tree"
    (tree / "scripts").mkdir(parents=True)
    for name in ("setup", "uv.txt"):
        shutil.copy(ROOT / "scripts" / name, tree / "scripts" / name)
    _wheel(tmp_path / "wheels", UV[1])
    base = Path(sys._base_executable)  # type: ignore[attr-defined]
    if subprocess.run([base, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("this Python has no pip of its own")
    # A python3 whose new environment is itself, with a folder of the test for what is installed: to make a true one
    # takes ten seconds.
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text(
        '#!/bin/sh\nif [ "$1 $2" = "-m venv" ]; then mkdir -p .tools/bin && ln -s "$0" .tools/bin/python; exit; fi\n'
        f'exec "{base}" "$@"\n'
    )
    python.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
        "PIP_TARGET": str(tmp_path / "installed"),
    }
    if subprocess.run([base, "-c", "import ensurepip"], capture_output=True, check=False).returncode:
        pytest.skip("this Python has no ensurepip, and set-up would install it")
    done = subprocess.run(
        [tree / "scripts" / "setup"], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode != 0
    assert "HASHES" in done.stderr, done.stderr
    assert "scripts/uv.txt" in done.stderr
    assert not (tmp_path / "installed").exists()


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for jars of an environment of its own, with the true ones in it."""
    true = jars.jar_folder()
    if not all((true / name).is_file() for name in jars.PACKAGES):
        pytest.skip("the jars are not here: no Java at set-up")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    shutil.copytree(true, jars.jar_folder())
    return jars.jar_folder()


@pytest.mark.parametrize("name", jars.PACKAGES)
def test_a_jar_that_was_exchanged_is_not_given_to_spark(environment: Path, name: str) -> None:
    assert [jar.name for jar in jars.delta_jars()] == list(jars.PACKAGES)
    with (environment / name).open("ab") as jar:
        jar.write(b"\0")
    with pytest.raises(ConfigError, match="SHA-256") as refusal:
        jars.delta_jars()
    assert "-m latermq.pipeline.spark.jars" in refusal.value.hint


def test_what_a_repository_answers_is_checked_before_any_of_it_is_kept(environment: Path, tmp_path: Path) -> None:
    found, target = tmp_path / "found", tmp_path / "target"
    found.mkdir()
    for name in jars.PACKAGES:
        shutil.copy(environment / name, found / f"io.delta_{name}")
    jars.install_jars(found, target)
    assert sorted(path.name for path in target.iterdir()) == sorted(jars.PACKAGES)
    shutil.rmtree(target)
    (found / f"io.delta_{list(jars.PACKAGES)[-1]}").write_bytes(b"something else")
    with pytest.raises(ConfigError, match="SHA-256"):
        jars.install_jars(found, target)
    assert not target.exists()


def test_a_jar_of_a_version_that_nobody_looked_at_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no checksum is known"):
        jars.check_jar(tmp_path / "any", "delta-storage-99.0.0.jar")


def test_the_checksums_are_those_of_the_jars_that_are_used() -> None:
    assert jars.CHECKSUMS.keys() == jars.PACKAGES.keys()


def test_what_builds_the_project_is_named_to_the_version_and_locked_with_its_hash() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lock = {package["name"]: package for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    required = project["build-system"]["requires"]
    assert set(required) <= set(project["dependency-groups"]["build"])
    assert project["tool"]["uv"]["no-build-isolation-package"] == ["latermq"]
    for requirement in project["dependency-groups"]["build"]:
        name, _, version = requirement.partition("==")
        assert lock[name]["version"] == version
    for package in lock.values():
        for wheel in package.get("wheels", []):
            assert wheel["hash"].startswith("sha256:"), package["name"]


@pytest.mark.parametrize("module", ["interop/go", "support/s3/server"])
def test_the_go_modules_are_named_with_their_hashes(module: str) -> None:
    folder = ROOT / "tests" / module
    wanted = re.findall(r"^\s*(?:require )?(\S+/\S+) (v\S+)", (folder / "go.mod").read_text(), re.MULTILINE)
    known = (folder / "go.sum").read_text()
    assert len(wanted) > 10
    assert [f"{module} {version}" for module, version in wanted if f"{module} {version}/go.mod h1:" not in known] == []


@pytest.mark.parametrize("pom", ["tests/interop/java/pom.xml", "tests/golden/java/pom.xml"])
def test_no_version_of_a_java_library_or_plugin_is_left_open(pom: str) -> None:
    text = (ROOT / pom).read_text()
    for kind in ("dependency", "plugin"):
        for part in re.findall(rf"<{kind}>.*?</{kind}>", text, re.DOTALL):
            version = re.search(r"<version>([^<]+)</version>", part)
            assert version is not None, part
            assert not re.search(r"[\[(,]|SNAPSHOT|LATEST|RELEASE", version[1]), part


def test_set_up_asks_for_hashes() -> None:
    # So that nobody takes them out of the call and leaves the file as it is.
    assert "--require-hashes" in (ROOT / "scripts" / "setup").read_text()
    assert os.access(ROOT / "scripts" / "setup", os.X_OK)
