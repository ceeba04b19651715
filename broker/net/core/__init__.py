"""The Kafka protocol on one connection: no socket, no task, no clock. Driven by `net.connection`."""
