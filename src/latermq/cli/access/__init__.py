"""Commands for users, permissions and credentials."""
