"""The fields that describe a message in a form, as the API has them."""

from collections.abc import Mapping
from typing import Any

from latermq.errors import InvalidParameter

FIELDS = ("topic", "key", "tag", "body", "properties")


def message_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the message of a form, without the fields that are empty. Raises InvalidParameter."""
    message: dict[str, Any] = {"topic": fields["topic"].strip(), "body": fields["body"].replace("\r\n", "\n")}
    message |= {name: fields[name].strip() for name in ("key", "tag") if fields[name].strip()}
    properties = {}
    for line in fields["properties"].splitlines():
        if line.strip():
            name, equals, value = line.partition("=")
            if not equals:
                raise InvalidParameter(f"{line[:40]!r} is not a property", hint="Write one name=value per line")
            properties[name.strip()] = value.strip()
    return message | ({"properties": properties} if properties else {})
