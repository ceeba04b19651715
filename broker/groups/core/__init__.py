"""Pure core of the group coordinator: classic groups and committed offsets over records of `__consumer_offsets`."""
