"""The live end of topics, on brokers: raw Fetch, offsets, produced batches and transactions."""
