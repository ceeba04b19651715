"""The live end of topics, on brokers: offsets on the driver, raw Fetch on executors."""
