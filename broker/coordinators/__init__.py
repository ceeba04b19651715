"""The base of the group and transaction coordinators: shards of an internal topic, and timers."""
