"""The metadata quorum: a Raft log of records, the image that they add up to, and the controller."""
