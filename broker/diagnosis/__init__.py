"""Diagnosis: rules that derive from the nodes' responses what is wrong with a cluster, and what mends it."""
