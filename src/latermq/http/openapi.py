"""The OpenAPI 3.1 document of the API, made from the rows of the route table and the structs that they name."""

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

import latermq
from latermq.http.endpoint import JSON, NDJSON, Answer, Call, Endpoint
from latermq.http.problems import CONTENT_TYPE, Problem
from latermq.http.security.token import OPEN_PATHS

OPENAPI_PATH = "/openapi.json"
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")
_SCHEMA = "#/components/schemas/{name}"


class OpenApi:
    """Answers GET /openapi.json."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        """`endpoints` are all other rows of the table."""
        own = Endpoint("GET", OPENAPI_PATH, self._answer, "This document", {HTTPStatus.OK: dict[str, Any]}, "health")
        self.endpoints = [own]
        self._encoded = msgspec.json.encode(document([*endpoints, own]))

    async def _answer(self, call: Call) -> Answer:
        return Answer(self._encoded)


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """Return the document for these rows."""
    rows = list(endpoints)
    types = [type_ for row in rows for type_ in (row.body, *row.answers.values()) if type_ is not None]
    types = list(dict.fromkeys([*types, Problem]))
    found, components = msgspec.json.schema_components(types, ref_template=_SCHEMA)
    schemas = dict(zip(types, found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, schemas, rows)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "LaterMQ",
            "version": latermq.__version__,
            "description": "Schedule, find, move and cancel messages that arrive later, and look after brokers.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "The value of http.token"}
            },
        },
        "security": [{}, {"token": []}],
    }


def _operation(row: Endpoint, schemas: dict[Any, dict[str, Any]], rows: Sequence[Endpoint]) -> dict[str, Any]:
    problem = {"description": "The request failed", "content": {CONTENT_TYPE: {"schema": schemas[Problem]}}}
    operation: dict[str, Any] = {
        "operationId": _operation_id(row),
        "summary": row.summary,
        "tags": [row.subject],
        "responses": {
            **{
                str(status.value): _success(row, status, type_, schemas) | _links(row, type_, rows)
                for status, type_ in row.answers.items()
            },
            "default": problem,
        },
    }
    if row.meaning:
        operation["description"] = row.meaning
    parameters = [*_path_parameters(row), *_query_parameters(row), *_header_parameters(row)]
    if parameters:
        operation["parameters"] = parameters
    if row.body is not None:
        operation["requestBody"] = {"required": True, "content": _content(row.body_type, schemas[row.body])}
    if row.path in OPEN_PATHS:
        operation["security"] = []
    return operation


def _operation_id(row: Endpoint) -> str:
    words = re.findall(r"[A-Za-z0-9]+", row.path.removeprefix("/api/v1"))
    return "_".join([row.method.lower(), *words]) or row.method.lower()


def _success(row: Endpoint, status: HTTPStatus, type_: Any, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": status.phrase}
    if type_ is not None:
        answer["content"] = _content(row.answer_type, schemas[type_])
    return answer


def _links(row: Endpoint, type_: Any, rows: Sequence[Endpoint]) -> dict[str, Any]:
    """Return what can be done with the `id` of something that was created: all rows below its path."""
    fields = {field.encode_name for field in msgspec.structs.fields(type_)} if _is_struct(type_) else set[str]()
    if row.method != "POST" or row.answer_type != JSON or "id" not in fields:
        return {}
    below = (one for one in rows if one.path == f"{row.path}/{{id}}" or one.path.startswith(f"{row.path}/{{id}}/"))
    links = {
        _operation_id(one): {"operationId": _operation_id(one), "parameters": {"id": "$response.body#/id"}}
        for one in below
    }
    return {"links": links} if links else {}


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


def _content(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    if media_type == NDJSON:
        # OpenAPI 3.1 has no schema for a sequence of documents.
        text = f"One JSON object per line: {schema.get('$ref', '').rpartition('/')[2]}"
        schema = {"type": "string", "description": text, "x-line": schema}
    return {media_type: {"schema": schema}}


def _path_parameters(row: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PATH_PARAMETER.findall(row.path)
    ]


def _query_parameters(row: Endpoint) -> list[dict[str, Any]]:
    if row.query is None:
        return []
    [_], components = msgspec.json.schema_components([row.query])
    schema = components[row.query.__name__]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": property_}
        for name, property_ in schema["properties"].items()
    ]


def _header_parameters(row: Endpoint) -> list[dict[str, Any]]:
    return [
        {
            "name": field.name,
            "in": "header",
            "required": False,
            "description": field.meaning,
            "schema": {"type": "string"} | ({"pattern": field.pattern} if field.pattern else {}),
        }
        for field in row.headers
    ]
