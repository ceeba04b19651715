"""Settings under Kafka's names: definitions, topic settings, node settings. Frozen, validated once."""
