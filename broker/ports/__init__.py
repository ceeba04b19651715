"""The ports every room stands on: identifiers, clock, files, tasks. Imports nothing of tierlog."""
