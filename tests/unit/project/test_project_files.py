"""The files around the code agree with each other: hooks with `make lint`, CI with `.ci/run`, pages with pages."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
# Those of Keep a Changelog, in its order.
CHANGELOG_SECTIONS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
RECORDS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
RECORD_HEADINGS = ["Status", "Context", "Decision", "Consequences", "Alternatives considered"]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    match = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert match is not None, target
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in match[1].splitlines()]


def loaded(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_the_hooks_run_what_make_lint_runs() -> None:
    hooks = [hook for repository in loaded(".pre-commit-config.yaml")["repos"] for hook in repository["hooks"]]
    assert [hook["entry"] for hook in hooks] == recipe("lint")


def test_the_hooks_take_their_tools_from_the_environment() -> None:
    repositories = loaded(".pre-commit-config.yaml")["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    assert {hook["language"] for hook in repositories[0]["hooks"]} == {"system"}
    # A whole-program check given some files would pass on what the others make of them.
    assert not any(hook["pass_filenames"] for hook in repositories[0]["hooks"])


def test_ci_checks_out_and_calls_the_script_that_people_call() -> None:
    workflow = loaded(".github/workflows/ci.yml")
    triggers = workflow[True]  # `on` is a truth value to YAML
    assert {"push", "pull_request"} <= triggers.keys()
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    checkout, run = job["steps"]
    # By its commit: a tag can be moved.
    assert re.fullmatch(r"actions/checkout@[0-9a-f]{40}", checkout["uses"])
    assert run == {"run": ".ci/run"}
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_every_link_between_pages_leads_to_a_file() -> None:
    links = (
        (page, target)
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", page.read_text())
        if "://" not in target
    )
    assert [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()] == []


def test_the_readme_has_no_figure_and_no_benchmark_that_the_page_of_benchmarks_lacks() -> None:
    figures = (ROOT / "README.md").read_text().partition("\n## Figures\n")[2].partition("\n## ")[0]
    measured = (ROOT / "docs" / "benchmarks.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| ([\d.,]+)[^|]* \| ([\d.,]+)[^|]* \| (?:`([^`]+)`)? ?\|$", figures, re.MULTILINE)
    assert len(rows) == figures.count("\n| ") - 1
    for name, ours, theirs, command in rows:
        assert command in measured, name
        assert all(re.search(rf"(?<![\d.,]){re.escape(one)}(?![\d])", measured) for one in (ours, theirs)), name


def test_every_module_that_a_page_runs_is_there() -> None:
    runs = {name for page in PAGES for name in re.findall(r"-m (latermq[\w.]*\w)", page.read_text())}
    assert runs
    assert {name for name in runs if find_spec(name) is None} == set()


def test_every_decision_record_has_the_usual_headings() -> None:
    assert RECORDS
    for record in RECORDS:
        assert re.findall(r"^## (.+)$", record.read_text(), re.MULTILINE) == RECORD_HEADINGS, record.name


def test_decision_records_are_numbered_and_listed() -> None:
    assert [int(record.name[:4]) for record in RECORDS] == list(range(1, len(RECORDS) + 1))
    assert all(record.read_text().startswith(f"# {record.name[:4]}: ") for record in RECORDS)
    listed = re.findall(r"^\| \[(\d{4})\]\((\S+\.md)\) \|", (ROOT / "docs/adr/README.md").read_text(), re.MULTILINE)
    assert listed == [(record.name[:4], record.name) for record in RECORDS]


def test_the_places_that_contributors_are_sent_to_are_there() -> None:
    named = re.findall(r"`((?:tests|[a-z]+)/[\w/.]+|config\.py)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 8
    assert [
        name
        for name in named
        if not any((root / name).exists() for root in (ROOT, ROOT / "src" / "latermq", ROOT / "src"))
    ] == []


def test_the_changelog_has_the_sections_of_keep_a_changelog_each_once_and_in_order() -> None:
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert releases[0].startswith("[Unreleased]")
    for release in releases:
        assert re.match(r"\[(Unreleased\]|\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d)\n", release)
        sections = re.findall(r"^### (.+)$", release, re.MULTILINE)
        assert sections == [name for name in CHANGELOG_SECTIONS if name in sections]
