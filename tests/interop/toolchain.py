"""Builds the Java and Go programs, once, and again only when their sources are newer than what was built."""

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.needs import need_tool

HERE = Path(__file__).parent
JAVA_SOURCES = HERE / "java"
JAVA_TARGET = JAVA_SOURCES / "target"
GO_SOURCES = HERE / "go"
GO_PROGRAM = GO_SOURCES / "build" / "interop"
# The first build downloads some hundred jars.
_BUILD_TIMEOUT_S = 900


@dataclass(frozen=True)
class ClassPaths:
    programs: str  # ours, with all below
    servers: str  # Apache RocketMQ's client, mqadmin, name server and broker


def build_java() -> ClassPaths:
    need_tool("java", "the Java client runs on it")
    mvn = need_tool("mvn", "it builds the Java programs")
    jar = JAVA_TARGET / "interop.jar"
    with _alone():
        if _is_stale(jar, [JAVA_SOURCES / "pom.xml", *JAVA_SOURCES.glob("src/**/*.*")]):
            # Offline first: with the jars already here it saves the look at every repository.
            command = [mvn, "--quiet", "--batch-mode", "package"]
            if _run([*command, "--offline"], JAVA_SOURCES).returncode != 0:
                _check(_run(command, JAVA_SOURCES))
            jar.touch()
    libraries = f"{JAVA_TARGET / 'lib'}/*"
    return ClassPaths(f"{jar}:{libraries}", libraries)


def build_go() -> Path:
    """Return the path of the Go program."""
    go = need_tool("go", "it builds the Go client's program")
    with _alone():
        if _is_stale(GO_PROGRAM, [GO_SOURCES / "go.mod", GO_SOURCES / "go.sum", *GO_SOURCES.glob("*.go")]):
            _check(_run([go, "build", "-o", str(GO_PROGRAM), "."], GO_SOURCES))
    return GO_PROGRAM


@contextmanager
def _alone() -> Iterator[None]:
    """Tests run in several processes: what the first of them builds the others find built."""
    folder = os.open(HERE, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _is_stale(built: Path, sources: list[Path]) -> bool:
    return not built.exists() or any(source.stat().st_mtime > built.stat().st_mtime for source in sources)


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False)


def _check(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        raise RuntimeError(f"{done.args} failed with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
