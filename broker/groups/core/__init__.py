"""Pure core of the group coordinator: classic groups and committed offsets, kept in `__consumer_offsets`."""
