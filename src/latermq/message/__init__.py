"""Messages as bytes: record layout, properties, ids and tags; no I/O."""
