"""The metadata quorum on one node: Raft driver, storage, transport, membership and observers."""
