"""Facts that several layers need are written in one place, and the others import them."""

import ast
import re
from collections.abc import Iterator

from latermq.message.properties import DELAY_LEVEL, OWN_PREFIX, TIMER_DELETE_KEY
from latermq.timer.admission import TIMES
from tests.unit.project.test_tidiness import ROOT, SRC, at, dotted, none_of, python_files, tree_of

STRUCT_CALLS = {"Struct", "pack", "unpack", "pack_into", "unpack_from", "calcsize", "iter_unpack"}


def uses_of(attribute: str) -> Iterator[tuple[str, ast.Attribute]]:
    for path in python_files(SRC, ROOT / "tests"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and node.attr == attribute:
                yield at(path, node.lineno, f"writes {attribute}"), node


def test_the_types_of_arrays_are_named_in_one_module() -> None:
    none_of(f"{use}; name the type in arrays.py" for use, _ in uses_of("NDArray") if "latermq/arrays.py" not in use)


def structs_in(*parts: str) -> Iterator[tuple[str, str]]:
    """Where a struct format is written below these folders, and the format."""
    for path in python_files(*(SRC / part for part in parts)):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in STRUCT_CALLS and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield at(path, node.lineno, f"writes the format {first.value!r}"), first.value


def test_the_head_of_a_remoting_frame_is_laid_out_in_one_module() -> None:
    frame_formats = (">II", ">hBhiii")
    none_of(
        f"{use}; take it from protocol/remoting/frames.py"
        for use, layout in structs_in("client", "pipeline", "server", "protocol", "broker")
        if layout in frame_formats and "protocol/remoting/frames.py" not in use
    )


def test_the_slot_of_a_time_is_computed_in_one_module() -> None:
    """Division by a slot alone counts slots, as the wheel does: that is another thing."""
    none_of(
        at(path, node.lineno, "rounds to a slot; call message/slots.py")
        for path in python_files(SRC)
        if path != SRC / "message" / "slots.py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.BinOp) and re.search(r"// (SLOT_MS|1_?000)\)? \* (SLOT_MS|1_?000)$", ast.unparse(node))
    )


def test_the_fields_of_a_record_are_told_by_one_module() -> None:
    """The formats of its head, and numbers that lie at any byte of a buffer of records."""
    home = "message/record_fields.py"
    heads = (">IIIIi", ">qqI", ">iqI", ">iq")
    none_of(
        f"{use}; take it from {home}"
        for use, layout in structs_in("")
        if layout.startswith(heads) and layout != ">iqi" and not layout.startswith(">iqii") and home not in use
    )
    none_of(
        at(path, node.lineno, f"writes {ast.unparse(node)}; take the length from {home}")
        for path in python_files(SRC)
        if path != SRC / "message" / "record_fields.py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and dotted(node.func) == "np.where" and "V6" in ast.unparse(node)
    )
    none_of(
        at(path, node.lineno, f"writes {ast.unparse(node)}; take the CRC or its mask from {home}")
        for path in python_files(SRC)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and "crc32" in ast.unparse(node.left)
    )


def test_growing_pauses_are_computed_in_one_module() -> None:
    doubled = re.compile(r"(\b2 \* [\w.]*pause_m?s\b|pause_m?s \* 2\b)", re.IGNORECASE)
    none_of(
        at(path, node.lineno, "doubles a pause; use retry.py")
        for path in python_files(SRC)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.BinOp) and doubled.search(ast.unparse(node))
    )


def test_the_near_and_far_rule_is_written_in_one_package() -> None:
    """The frontier that a cut sets, and the kinds that schedule a timer or cancel others."""
    rules = {
        r"^\(\w+\.entry \+ 1, \w+\.frontier_ms\)$": "handover/ownership.py",
        r"^np\.isin\([\w.]*kinds, \((TIMER|CANCEL), MOVED\)\)$": "message/timer_code.py",
        r"^\([\w.]*kinds == (TIMER|CANCEL)\) \| \([\w.]*kinds == MOVED\)$": "message/timer_code.py",
    }
    none_of(
        at(path, node.lineno, f"writes {ast.unparse(node)}; use {home}")
        for path in python_files(SRC)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Tuple | ast.Call | ast.BinOp)
        for rule, home in rules.items()
        if path != SRC / home and re.search(rule, ast.unparse(node))
    )


def test_the_quick_check_for_delays_finds_every_property_that_sets_a_time() -> None:
    """Three hot paths search the encoded properties for these texts. A name without one would be ignored silently."""
    check = re.compile(r'"(\w+)" in \w+ or "(\w+)" in \w+ or (OWN_PREFIX) in \w+')
    places = ("broker/messages/writer.py", "broker/messages/batch_admission.py", "server/remoting/send_lane.py")
    searched = {check.search((SRC / place).read_text()).groups() for place in places}  # type: ignore[union-attr]
    assert len(searched) == 1, f"the places differ: {searched}"
    texts = [OWN_PREFIX if text == "OWN_PREFIX" else text for text in searched.pop()]
    names = (*TIMES, DELAY_LEVEL, TIMER_DELETE_KEY)
    assert [name for name in names if not any(text in name for text in texts)] == []
