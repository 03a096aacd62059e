"""The calls of the 5.x protocol, one module per subject."""
