"""Replication: replicas that lead or follow, the fetchers between brokers, in-sync replicas, the replica manager."""
