"""What all packages share: identifiers, clock, files, tasks, network. Imports nothing else of tierlog."""
