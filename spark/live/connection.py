"""Clients of the brokers, kept open between the tasks of a worker.

A client belongs to one thread at a time: it is taken out of the pool while a task uses it. A task that fails
does not put it back, because a request may still be under way.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tierlog.client import Cluster, ConnectionOptions
from tierlog.spark.options.security import socket_opener
from tierlog.spark.options.stream import LiveOptions

VERSIONS_BY_ID = {0: 12, 8: 9, 9: 9}
"""Versions as the client's own, except that Fetch refers to topics by id: a topic that was deleted and
created again is an error, and not read as if it were the old one."""

_IDLE: dict[LiveOptions, list[Cluster]] = {}


def connect(options: LiveOptions) -> Cluster:
    """A new client. Connects at its first request."""
    return Cluster(
        options.bootstrap,
        timeout_s=options.timeout_s,
        options=ConnectionOptions(
            client_id=options.client_id,
            max_versions=VERSIONS_BY_ID,
            open_socket=socket_opener(options.security),
        ),
    )


@contextmanager
def pooled(options: LiveOptions) -> Iterator[Cluster]:
    """A client of this process, with its connections and leaders."""
    idle = _IDLE.setdefault(options, [])
    cluster = idle.pop() if idle else connect(options)
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    idle.append(cluster)
