"""README.md and docs/guides, done as a reader does them: every file, command and program, in order, in an empty folder.

Addresses, and nothing else, are others than on the page (tests/support/page_session.py).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.golden.files import DATA, golden_json, unpack
from tests.support.needs import need_tool
from tests.support.page_session import page_session, steps_of

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "guides"
NO_SPARK = {"LATERMQ_PIPELINE_ENABLED": "false"}  # takes longer to start than the rest of a page
SERVER = "latermq serve --data ./server"
# Done by other tests, or not on a machine that runs tests.
ELSEWHERE = {
    "make setup && source .venv/bin/activate": "CI does it in a fresh clone before any test",
}


def rocketmq_store(folder: Path) -> None:
    """What a broker of RocketMQ leaves behind in its user's home."""
    unpack(DATA / "apache-store-timers.tar.gz", folder / "store")


def small_files() -> dict[str, str]:
    """The settings with which that store was written, in place of RocketMQ's defaults."""
    known = golden_json("apache-store-timers.json")
    return {
        "1GiB": str(known["segment_bytes"]),
        "300000": str(known["queue_file_bytes"] // 20),
    }


def nothing(folder: Path) -> None:
    """An empty folder."""


@dataclass(frozen=True)
class Page:
    """A page, and what its reader has before the first step."""

    path: Path
    has_server: bool = False  # one that the page takes for granted
    prepare: Callable[[Path], None] = nothing
    environment: dict[str, str] = field(default_factory=lambda: NO_SPARK)
    replaced: Callable[[], dict[str, str]] = dict

    def __str__(self) -> str:
        return self.path.stem


SMALL_STORE = {
    "LATERMQ_STORE_RESERVE_STEP": "4096",
    "LATERMQ_STORE_INDEX_SLOTS": "64",
    "LATERMQ_STORE_INDEX_ENTRIES": "128",
    "LATERMQ_BROKER_MAX_MESSAGE": "4KiB",
}
PAGES = [
    Page(ROOT / "README.md"),
    Page(GUIDES / "first-steps.md"),
    Page(GUIDES / "scheduling-patterns.md", has_server=True),
    Page(GUIDES / "from-rocketmq.md", prepare=rocketmq_store, replaced=small_files, environment=NO_SPARK | SMALL_STORE),
]
LONG_PAGES = [
    Page(GUIDES / "operating.md"),
    Page(GUIDES / "capacity.md"),
    Page(GUIDES / "security.md"),
    Page(GUIDES / "spark-pipeline.md", environment={"LATERMQ_PIPELINE_INGEST_EVERY": "1s"}),
]


def read(page: Page, folder: Path) -> None:
    need_tool("curl", "the pages use it")
    page.prepare(folder)
    steps = [step for step in steps_of(page.path) if step.text not in ELSEWHERE]
    assert steps
    with page_session(folder, page.environment, replaced=page.replaced()) as session:
        if page.has_server:
            session.start(SERVER)
        for step in steps:
            session.do(step)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_reader_gets_from_the_first_step_to_the_last(page: Page, tmp_path: Path) -> None:
    read(page, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("page", LONG_PAGES, ids=str)
def test_a_reader_of_a_further_guide_does_too(page: Page, tmp_path: Path) -> None:
    need_tool("java", "Spark requires it")
    read(page, tmp_path)


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ("console\n$ false\n", "exited with 1"),
        ("console\n$ echo moved\ncancelled\n", "does not print"),
        ("console\n$ latermq serve --data /dev/null/data\nlatermq ready\n", "is not ready"),
        ("python\nraise SystemExit(3)\n", "exited with 3"),
    ],
    ids=["a command fails", "a command prints something else", "a server does not start", "a program fails"],
)
def test_a_page_that_is_wrong_is_noticed(block: str, complaint: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Do this:\n\n```{block}```\n")
    (step,) = steps_of(page)
    with page_session(tmp_path, NO_SPARK) as session, pytest.raises(AssertionError, match=complaint):
        session.do(step)


def test_every_guide_is_done_here_and_listed_in_the_readme() -> None:
    done = {page.path for page in (*PAGES, *LONG_PAGES)}
    assert done == {ROOT / "README.md", *GUIDES.glob("*.md")}
    listed = re.findall(r"\]\((docs/guides/[\w-]+\.md)(?:#\S*)?\)", (ROOT / "README.md").read_text())
    assert {ROOT / name for name in listed} == done - {ROOT / "README.md"}


def test_commands_that_are_left_out_are_on_a_page() -> None:
    assert {step.text for page in (ROOT / "README.md",) for step in steps_of(page)} >= ELSEWHERE.keys()
