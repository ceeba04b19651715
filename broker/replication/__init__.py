"""Replication: replicas that lead or follow, fetchers, in-sync replicas, the replica manager."""
