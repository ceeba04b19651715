"""Logs on local disks, in Kafka's own formats: segments, indexes, recovery, compaction, log directories."""
