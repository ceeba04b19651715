"""Chaos with real processes: a cluster, what is done to it, its clients, and the judge of what they saw."""
