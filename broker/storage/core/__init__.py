"""Pure core of storage: producer state, retention, compaction and batch validation."""
