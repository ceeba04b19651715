"""tierlog: a partitioned log that speaks the Kafka protocol and keeps its history in your object store."""

__version__ = "0.1.0"
