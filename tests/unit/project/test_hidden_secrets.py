"""No struct, named tuple or dataclass of the package shows a secret in its text, which logs may contain."""

import ast
import dataclasses
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from latermq.config import SECRET_SETTINGS, load_config

SOURCE = Path(__file__).parents[3] / "src"
SECRET_FIELD = re.compile(r"(^|_)(secrets?|passwords?|token|webhook|init_user|authorization|private_key|passphrase)$")
SHOWN_NOWHERE = "shown-nowhere"
HARMLESS = {
    ("_FileJson", "init_user"),  # only the name of the user
    ("StoredAccess", "init_user"),
    ("Servers", "needs_token"),  # yes or no
}


def classes_with_secrets() -> Iterator[tuple[str, str, list[str]]]:
    """Module, class and fields."""
    for path in sorted((SOURCE / "latermq").rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                names = [
                    one.target.id
                    for one in node.body
                    if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
                ]
                found = [name for name in names if SECRET_FIELD.search(name) and (node.name, name) not in HARMLESS]
                if found:
                    yield module, node.name, found


FOUND = list(classes_with_secrets())


def filled(type_: Any, secret_fields: list[str]) -> object:
    """An object of this type, in which only secrets have a value."""
    names = getattr(type_, "__struct_fields__", None) or getattr(type_, "_fields", None)
    if names is None:
        names = [field.name for field in dataclasses.fields(type_)]
    return type_(**{name: SHOWN_NOWHERE if name in secret_fields else None for name in names})


@pytest.mark.parametrize(("module", "name", "fields"), FOUND, ids=[name for _, name, _ in FOUND])
def test_no_text_of_an_object_has_its_secrets(module: str, name: str, fields: list[str]) -> None:
    shown = filled(getattr(importlib.import_module(module), name), fields)
    assert all(getattr(shown, field) == SHOWN_NOWHERE for field in fields)
    assert SHOWN_NOWHERE not in f"{shown} {shown!r} {[shown]}"


def test_all_kinds_of_classes_are_found() -> None:
    names = {name for _, name, _ in FOUND}
    assert names >= {"User", "UserChange", "UserInfo", "AccessConfig", "HttpConfig", "AlertsConfig", "DriverAddress"}


def test_the_text_of_a_configuration_has_no_secret_setting() -> None:
    values = {"access.init_user": f"root:{SHOWN_NOWHERE}", "alerts.webhook": f"https://{SHOWN_NOWHERE}.example/x"}
    settings = [f"{name}={values.get(name, SHOWN_NOWHERE * 4)}" for name in sorted(SECRET_SETTINGS)]
    config = load_config(settings=settings, environment={})
    assert SHOWN_NOWHERE in config.http.token
    assert SHOWN_NOWHERE not in f"{config!r} {config}"
