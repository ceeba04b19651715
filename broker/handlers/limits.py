"""Limits of admin requests, as in Kafka, where one request becomes one batch of the metadata log."""

MAX_RECORDS_PER_REQUEST = 10_000
"""MAX_RECORDS_PER_USER_OP of Kafka's QuorumController."""

TOO_LARGE = "Unable to perform excessively large batch operation."
"""Message of POLICY_VIOLATION for a request beyond the limit."""
