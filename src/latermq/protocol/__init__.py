"""Wire protocols: bytes to calls and back; no I/O."""
