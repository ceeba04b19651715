"""The metadata quorum on one node: the Raft driver, its storage and transport, membership, observers."""
