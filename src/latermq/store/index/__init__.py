"""The key index: its files, the check that it is complete, and its recovery."""
