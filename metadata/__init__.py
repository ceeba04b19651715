"""The metadata quorum: a Raft log of records, the image they add up to, and who writes them."""
