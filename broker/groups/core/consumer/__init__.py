"""Consumer groups (KIP-848): the broker assigns the partitions, and members follow by heartbeats."""
