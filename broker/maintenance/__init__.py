"""Background work on local logs: retention, log cleaner, scrubber, repair, moves between log directories."""
