"""Raft as a pure core: messages go in, one `Ready` of ordered work comes out. No records, files or sockets.

"Thesis" in comments is Ongaro's dissertation, "Consensus: Bridging Theory and Practice" (2014).
"""
