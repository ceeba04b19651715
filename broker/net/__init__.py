"""Network layer: listeners and client connections. Reads requests, calls handlers, sends responses in
order."""
