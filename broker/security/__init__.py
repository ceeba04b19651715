"""Authentication and authorization of clients. No module here knows sockets or handlers."""
