"""Disks: real files, files in memory that die like a machine, and a read-only rehearsal of a start."""
