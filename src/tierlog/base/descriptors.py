"""File descriptor limit of the process, and the share of its logs. Called by the composition root at
startup."""

import resource

OTHERS = 512
"""Descriptors for other uses than logs and clients: metadata log, cached chunks, connections to the object
store, files that threads open for a moment.
"""

LEAST = 256
"""Minimum limit with which a node starts."""


def raise_limit() -> int:
    """Raise the soft limit of RLIMIT_NOFILE to the hard limit. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # some kernels allow less than the hard limit (macOS)
            return soft
    return hard


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def share_of_logs(wanted: int, connections: int, limit: int) -> int:
    """Descriptors for logs: `wanted` if they fit into `limit` beside the connections, else what the
    connections leave, but at least a quarter: connections seldom reach their limit, and logs are always read.
    """
    if limit == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(limit - connections - OTHERS, limit // 4))
