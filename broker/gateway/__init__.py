"""The admin HTTP API of a node: health, metrics, where the tiers stand, and a stream of events."""
