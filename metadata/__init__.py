"""The metadata quorum: a Raft log of records, the image they add up to, and the controller that writes them."""
