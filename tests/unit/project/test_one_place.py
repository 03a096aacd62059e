"""Facts that several layers need are written in one place, and the others import them."""

import ast
from collections.abc import Iterator

from tests.unit.project.test_tidiness import ROOT, SRC, at, none_of, python_files, tree_of


def uses_of(attribute: str) -> Iterator[tuple[str, ast.Attribute]]:
    for path in python_files(SRC, ROOT / "tests"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and node.attr == attribute:
                yield at(path, node.lineno, f"writes {attribute}"), node


def test_the_types_of_arrays_are_named_in_one_module() -> None:
    none_of(f"{use}; name the type in arrays.py" for use, _ in uses_of("NDArray") if "latermq/arrays.py" not in use)
