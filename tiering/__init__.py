"""The second tier: formats in the bucket, object stores, and the manager that moves rolled segments there.

Never calls the broker: the runtime hands it values (paths, offsets, epochs) and it answers with proposals.
"""
