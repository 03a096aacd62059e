"""Commands that run servers, and the demo."""
