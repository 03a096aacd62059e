"""What schemathesis cannot know: how a body of one JSON object per line is sent. Loaded through SCHEMATHESIS_HOOKS."""

import json

import schemathesis
from schemathesis import SerializationContext


@schemathesis.serializer("application/x-ndjson")
def encode_lines(context: SerializationContext, value: object) -> bytes:
    """Encode a text as it is, and anything else as one line."""
    return value.encode(errors="replace") if isinstance(value, str) else json.dumps(value).encode()
