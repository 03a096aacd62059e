"""Commands that run a server, and the demo."""
