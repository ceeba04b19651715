"""Raft as a pure core: messages go in, one `Ready` of ordered work comes out. No records, files or
sockets."""
