"""A cluster seen from one of its brokers."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from admin_cluster import AdminCluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[AdminCluster]:
    """Brokers 1 to 4 serve; requests go to 1."""
    cluster = AdminCluster(tmp_path, **{"max.request.partition.size.limit": "5"})
    await cluster.start(1, 2, 3, 4)
    yield cluster
    await cluster.close()
