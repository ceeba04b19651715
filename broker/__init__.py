"""One node that speaks the Kafka protocol: records and wire at the bottom, net and app at the top."""
