"""Audit log: what clients changed, and what was denied, in files of JSON lines."""
