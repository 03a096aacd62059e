"""The files around the code agree with each other: hooks with `make lint`, CI with `.ci/run`."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]


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
