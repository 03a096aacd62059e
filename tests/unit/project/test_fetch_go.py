"""Where scripts/fetch-go gets the Go toolchain from: the proxy that `go` uses, or would use if it were installed."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "fetch-go"


@pytest.fixture
def fetch_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script on a machine without Go and without a configured proxy."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("GOPROXY", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would be written into scripts/
    loader = importlib.machinery.SourceFileLoader("fetch_go", str(SCRIPT))
    spec = importlib.util.spec_from_loader("fetch_go", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_on_a_bare_machine_the_proxy_is_the_default_of_go(fetch_go: ModuleType) -> None:
    assert fetch_go.proxy() == "https://proxy.golang.org"


def test_the_proxy_of_an_installed_go_is_used(fetch_go: ModuleType, tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho https://mirror.example/go/,direct\n")
    go.chmod(0o755)
    assert fetch_go.proxy() == "https://mirror.example/go"


def test_a_configured_proxy_precedes_words_such_as_direct(
    fetch_go: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOPROXY", "direct|https://mirror.example,off")
    assert fetch_go.proxy() == "https://mirror.example"


def test_where_no_proxy_may_be_used_nothing_is_fetched(fetch_go: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOPROXY", "off")
    with pytest.raises(SystemExit, match="GOPROXY is off"):
        fetch_go.proxy()
