"""The group coordinator of a broker: a shard for each partition of `__consumer_offsets` that it leads."""
