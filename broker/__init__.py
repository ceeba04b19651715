"""One node that speaks the Kafka protocol: storage and quotas at the bottom, net and app at the top."""
