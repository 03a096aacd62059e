"""`make docs`: the site is built from the pages without a warning and without a network, and loads nothing from one."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from latermq.config import Config
from latermq.errors import LaterMQError
from tests.unit.project.test_project_files import recipe

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240


def build(config: Path, site: Path) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(config),
        "--site-dir",
        str(site),
    ]
    if shutil.which("unshare") and os.geteuid() == 0:
        # In a network namespace of its own there is not even a loopback.
        isolated = ["unshare", "--net"]
        if subprocess.run([*isolated, "true"], capture_output=True, check=False).returncode == 0:
            command = [*isolated, *command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def page(site: Path, name: str) -> str:
    """The text of a page without markup."""
    return re.sub(r"<[^>]+>", "", (site / name).read_text(encoding="utf-8"))


def test_make_docs_builds_strictly() -> None:
    assert recipe("docs") == ["NO_MKDOCS_2_WARNING=1 PYTHONPATH=. .venv/bin/mkdocs build --strict"]


def test_pages_load_nothing_from_other_sites(site: Path) -> None:
    loaded = re.compile(
        r"<(?:script|img|iframe)[^>]+src=\"?(?:https?:)?//|<link[^>]+href=\"?(?:https?:)?//[^>]*stylesheet"
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    assert [found.name for found in pages if loaded.search(found.read_text(encoding="utf-8"))] == []


def test_every_page_of_the_documentation_is_in_the_site(site: Path) -> None:
    docs = ROOT / "docs"
    for path in docs.rglob("*.md"):
        name = path.relative_to(docs).with_suffix(".html")
        built = site / name if name.name != "README.html" else site / name.parent / "index.html"
        assert built.exists(), name


def test_every_link_and_anchor_between_built_pages_exists(site: Path) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html") if path.name != "404.html"}
    anchors = {path: set(re.findall(r'\bid="?([^\s">]+)', text)) for path, text in texts.items()}
    broken = []
    for path, text in texts.items():
        for link in re.findall(r'<a [^>]*href="?([^\s">]+)', text):
            target, _, anchor = link.partition("#")
            if ":" in target:
                continue
            file = (path.parent / target).resolve() if target else path
            file = file / "index.html" if file.is_dir() else file
            if not file.exists() or (anchor and file in anchors and anchor not in anchors[file]):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


def test_the_reference_has_every_setting_and_every_error(site: Path) -> None:
    settings = page(site, "reference/settings.html")
    for section in msgspec.structs.fields(Config):
        for field in msgspec.structs.fields(section.type):
            assert f"{section.name}.{field.name}" in settings
            assert f"LATERMQ_{section.name.upper()}_{field.name.upper()}" in settings
    errors = page(site, "reference/errors.html")
    assert all(
        error.__name__ in errors for error in LaterMQError.__subclasses__() if error.__module__ == "latermq.errors"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("commands", "latermq pipeline schedule"),
        ("commands", "--dry-run"),
        ("metrics", "rocketmq_timer_enqueue_lag"),
        ("metrics", "latermq_driver_brokers"),
        ("requests", "SEND_MESSAGE_V2"),
        ("requests", "GET_ROUTEINFO_BY_TOPIC"),
        ("calls", "ChangeInvisibleDuration"),
        ("calls", "Telemetry"),
        ("http", "PATCH /api/v1/timers/{id}"),
        ("http", "Idempotency-Key"),
    ],
)
def test_the_reference_has_what_the_code_has(site: Path, name: str, text: str) -> None:
    assert text in page(site, f"reference/{name}.html")


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "page.md").write_text("# Page\n\nSee [another](another.md).\n")
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[0]
    config = tmp_path / "mkdocs.yml"
    config.write_text(re.sub(r"\nhooks:\n.*?\n\n", "\n\n", text, flags=re.DOTALL))
    done = build(config, tmp_path / "site")
    assert done.returncode != 0
    assert "another.md" in done.stderr
