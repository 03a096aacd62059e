"""/openapi.json is valid, and describes every row of the route table."""

from collections.abc import Iterator
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from latermq.http.process import ConsoleProcess
from tests.integration.brokers import NOBODY
from tests.support.http_console import HttpClient, running_console

Console = tuple[ConsoleProcess, HttpClient]


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    with running_console(NOBODY) as found:
        yield found


@pytest.fixture(scope="module")
def document(console: Console) -> dict[str, Any]:
    found: dict[str, Any] = console[1].get("/openapi.json").json
    return found


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    assert [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


def test_the_document_has_every_row_once(console: Console, document: dict[str, Any]) -> None:
    rows = {(row.path, row.method.lower()) for row in console[0].endpoints}
    assert {(path, method) for path, methods in document["paths"].items() for method in methods} == rows
    operations = [row for methods in document["paths"].values() for row in methods.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(set(ids)) == len(ids)
    assert all(operation["summary"] and operation["tags"][0] for operation in operations)


def test_every_error_is_a_problem(document: dict[str, Any]) -> None:
    for methods in document["paths"].values():
        for operation in methods.values():
            assert list(operation["responses"]["default"]["content"]) == ["application/problem+json"]
    problem = document["components"]["schemas"]["Problem"]
    assert {"type", "title", "status", "detail", "code", "hint"} <= problem["properties"].keys()


@pytest.mark.parametrize(("path", "status"), [("/api/v1/timers", "201"), ("/api/v1/jobs", "202")])
def test_what_is_created_links_to_what_can_be_done_with_it(document: dict[str, Any], path: str, status: str) -> None:
    links = document["paths"][path]["post"]["responses"][status]["links"]
    below = {one: methods for one, methods in document["paths"].items() if one.startswith(f"{path}/{{id}}")}
    assert {link["operationId"] for link in links.values()} == {
        operation["operationId"] for methods in below.values() for operation in methods.values()
    }
    assert len(links) >= 4
    assert {link["parameters"]["id"] for link in links.values()} == {"$response.body#/id"}
