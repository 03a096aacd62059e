"""Commands that show whether a server is well: once, and live."""
