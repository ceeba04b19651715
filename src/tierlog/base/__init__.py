"""Parts that all packages share: identifiers, clock, files, tasks, network. Imports no other package."""
