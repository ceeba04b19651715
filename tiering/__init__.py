"""Remote storage: formats in the bucket, object stores, and the manager that uploads rolled segments.

It never calls the broker: the broker passes values (paths, offsets, epochs) in, and commits what is returned.
"""
