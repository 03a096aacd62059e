"""The options of CREATE TABLE … USING latermq, kept in the table's schema.

Spark passes them to a Python source only while the table is created, and later only its schema. A column's metadata
are part of that, in the catalog, for reading and for INSERT INTO.
"""

import json

from pyspark.sql.types import StructField, StructType

_KEY = "latermq.options"


def with_options(schema: StructType, options: dict[str, str]) -> StructType:
    """The same columns, with these options."""
    first, *rest = schema.fields
    kept = StructField(first.name, first.dataType, first.nullable, {_KEY: json.dumps(options)})
    return StructType([kept, *rest])


def options_in(schema: StructType) -> dict[str, str]:
    """The options in a schema; none if the table was created with columns, or this is not a table."""
    for field in schema.fields:
        if _KEY in field.metadata:
            found: dict[str, str] = json.loads(field.metadata[_KEY])
            return found
    return {}
