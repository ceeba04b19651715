"""The group coordinator: classic groups and committed offsets, as pure cores over `__consumer_offsets`
records.
"""
