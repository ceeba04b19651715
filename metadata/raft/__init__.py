"""Raft as a pure core: messages in, one `Ready` of ordered work out. Knows nothing of records, files or sockets."""
