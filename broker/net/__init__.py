"""Listeners and the connection pump: bytes of a socket in, requests to handlers, replies out in order."""
