"""Builds the programs of other languages, once, and again only when their sources are newer than what was built."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.needs import TOOLS, need_tool

HERE = Path(__file__).parent
BENCH = HERE.parent / "bench"
JAVA_SOURCES = HERE / "java"
JAVA_TARGET = JAVA_SOURCES / "target"
S3_SERVER = HERE.parent / "support" / "s3" / "server"
S3_SERVER_PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
H2SPEC_PACKAGE = "github.com/summerwind/h2spec/cmd/h2spec"
# The first build downloads some hundred jars.
_BUILD_TIMEOUT_S = 900


@dataclass(frozen=True)
class ClassPaths:
    programs: str  # ours, with all below
    servers: str  # Apache RocketMQ's client, mqadmin, name server and broker


def build_java() -> ClassPaths:
    jar = _built_jar(JAVA_SOURCES, "interop")
    libraries = f"{JAVA_TARGET / 'lib'}/*"
    return ClassPaths(f"{jar}:{libraries}", libraries)


def build_go() -> Path:
    """Return the path of the program with RocketMQ's Go client."""
    return _built_go(HERE / "go", "interop")


def build_java5() -> str:
    """Return the class path of the program with RocketMQ's Java client of the 5.x protocol."""
    jar = _built_jar(HERE / "java5", "interop5")
    return f"{jar}:{jar.parent / 'lib'}/*"


def build_go5() -> Path:
    """Return the path of the program with RocketMQ's Go client of the 5.x protocol."""
    return _built_go(HERE / "go5", "go5")


def go_program(module: Path, source: Path) -> Path:
    """Build one file with the dependencies of a module, beside the file."""
    go = need_tool("go", "it builds Go programs")
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(module / name, source.parent / name)
    program = source.with_suffix("")
    _check(_run([go, "build", "-o", str(program), "."], source.parent))
    return program


def build_node5() -> list[str]:
    """Return the command that runs the program with RocketMQ's Node client."""
    return _built_node(HERE / "node5", "program.js")


def build_python5() -> list[str]:
    """Return the command that runs the program with RocketMQ's Python client, in an environment of its own."""
    uv = need_tool("uv", "it installs the Python client")
    folder = HERE / "python5"
    requirements = folder / "requirements.txt"
    # Outside of the tree of tests, whose Python files are all compiled and checked.
    environment = TOOLS / "python5"
    python = environment / "bin" / "python"
    stamp = environment / "stamp"
    with _alone():
        if _is_stale(stamp, [requirements]):
            _check(_run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(environment)], folder))
            install = [uv, "pip", "install", "--quiet", "--python", str(python), "--require-hashes", "--no-deps"]
            _check(_run([*install, "--requirement", str(requirements)], folder))
            stamp.touch()
    return [str(python), str(folder / "program.py")]


def build_go_grpc() -> Path:
    """Return the path of the program with grpc-go's client."""
    return _built_go(HERE / "go_grpc", "go_grpc")


def build_java_grpc() -> str:
    """Return the class path of the program with grpc-java's client."""
    jar = _built_jar(HERE / "java_grpc", "java_grpc")
    return f"{jar}:{jar.parent / 'lib'}/*"


def build_js_grpc() -> list[str]:
    """Return the command that runs the program with grpc-js's client."""
    return _built_node(HERE / "js_grpc", "check.js")


def build_go_load() -> Path:
    """Return the path of the load generator for gRPC and POP."""
    return _built_go(BENCH / "go", "load")


def build_h2spec() -> Path:
    """Return the path of h2spec."""
    return _built_go(HERE / "h2spec", "h2spec", H2SPEC_PACKAGE)


def build_s3_server() -> Path:
    """Return the path of versitygw, a server of S3."""
    return _built_go(S3_SERVER, "versitygw", S3_SERVER_PACKAGE)


def _built_jar(folder: Path, name: str) -> Path:
    need_tool("java", "the Java client runs on it")
    mvn = need_tool("mvn", "it builds the Java programs")
    jar = folder / "target" / f"{name}.jar"
    with _alone():
        if _is_stale(jar, [folder / "pom.xml", *folder.glob("src/**/*.*")]):
            # Offline first: with the jars already here it saves the look at every repository.
            command = [mvn, "--quiet", "--batch-mode", "package"]
            if _run([*command, "--offline"], folder).returncode != 0:
                _check(_run(command, folder))
            jar.touch()
    return jar


def _built_node(folder: Path, name: str) -> list[str]:
    node = need_tool("node", "the JavaScript client runs on it")
    npm = need_tool("npm", "it installs the JavaScript client")
    sources = [folder / file for file in ("package.json", "package-lock.json", name)]
    program = folder / "build" / name
    with _alone():
        if _is_stale(program, sources):
            program.parent.mkdir(exist_ok=True)
            for source in sources[:2]:
                shutil.copyfile(source, program.parent / source.name)
            # Install scripts of packages are not needed, so none is run.
            install = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
            _check(_run(install, program.parent))
            shutil.copyfile(sources[2], program)
    return [node, str(program)]


def _built_go(folder: Path, name: str, package: str = ".") -> Path:
    go = need_tool("go", f"it builds the program {name}")
    program = folder / "build" / name
    with _alone():
        if _is_stale(program, [folder / "go.mod", folder / "go.sum", *folder.glob("*.go")]):
            _check(_run([go, "build", "-o", str(program), package], folder))
    return program


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
