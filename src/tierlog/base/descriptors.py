"""How many descriptors this process may have, and how many of them its logs get.

Called by the composition root at the start.
"""

import resource

OTHERS = 512
"""Neither logs nor clients, be they served or turned away: the metadata log, chunks of the cache, connections
to the object store, and files that threads open for a moment.
"""

LEAST = 256
"""With fewer a node does not start."""


def raise_limit() -> int:
    """Takes the soft limit of RLIMIT_NOFILE to the hard one; returns what may be open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # some kernels allow less than they promise (macOS)
            return soft
    return hard


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def share_of_logs(wanted: int, connections: int, limit: int) -> int:
    """Of `limit`: what is wanted if it fits beside that many connections of clients; else what they leave,
    but a quarter at least, since a bound on connections is seldom reached and logs are always read.
    """
    if limit == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(limit - connections - OTHERS, limit // 4))
