"""The admin HTTP API of a node: health, metrics, tier status, operations, and a stream of events."""
