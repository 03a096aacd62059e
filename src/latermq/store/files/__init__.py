"""Disks: real files, files in memory that simulate crashes, and a read-only rehearsal of a start."""
