"""The byte formats of messages: record layout, properties, ids and tags, without I/O."""
