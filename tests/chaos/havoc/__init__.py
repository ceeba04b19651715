"""Chaos tests with real processes: a cluster, faults, clients, and the checker of their history."""
