"""Raft as a pure core: messages in, one `Ready` of ordered work out. No records, files or sockets."""
