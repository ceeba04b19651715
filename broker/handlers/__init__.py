"""A request in, a response out: one module per family of APIs. No sockets here, no files."""
