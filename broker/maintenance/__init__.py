"""Background work on local logs: retention, flushes and checkpoints, disk pressure, log cleaner, scrubber,
repair, moves between log directories."""
