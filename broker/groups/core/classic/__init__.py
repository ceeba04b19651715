"""Classic groups: the clients agree on a protocol, and one of them assigns the partitions."""
