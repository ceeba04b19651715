"""Pure core of storage: producer state, retention, compaction, validation of batches."""
