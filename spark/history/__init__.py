"""History in the bucket: plans from manifests, and the bytes that they name.

`plan` and `segment_index` are pure; `snapshot` reads manifests, `bucket` objects, and `decoding` makes
columns of their bytes.
"""
