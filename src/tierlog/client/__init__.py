"""Synchronous Kafka client: one connection per broker, one request at a time.

The command line and the Spark data source are built on it. It uses the message classes of `tierlog.protocol`
and imports nothing that a node does not have anyway. It prints nothing and knows no exit codes: failures are
the exceptions in `errors`.

A `Cluster` and its connections belong to one thread. A program with several threads has a Cluster for each:
a Fetch that waits for records would delay all other requests of a shared connection.
"""

from tierlog.client.cluster import Cluster
from tierlog.client.connection import Address, Connection, ConnectionOptions
from tierlog.client.errors import (
    ClientError,
    ErrorResponse,
    InvalidAddress,
    InvalidRequest,
    InvalidResponse,
    NotAvailable,
    TimedOut,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
    UnsupportedRequest,
    error_name,
    is_retriable,
    raise_for,
)

__all__ = [
    "Address",
    "ClientError",
    "Cluster",
    "Connection",
    "ConnectionOptions",
    "ErrorResponse",
    "InvalidAddress",
    "InvalidRequest",
    "InvalidResponse",
    "NotAvailable",
    "TimedOut",
    "UnknownPartition",
    "UnknownTopic",
    "Unreachable",
    "UnsupportedRequest",
    "error_name",
    "is_retriable",
    "raise_for",
]
