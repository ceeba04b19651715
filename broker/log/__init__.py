"""The log of one partition on local files, in Kafka's own formats: segments, indexes, recovery,
checkpoints.
"""
