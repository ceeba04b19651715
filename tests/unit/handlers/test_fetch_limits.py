"""Fetch: min_bytes and max_bytes of a request."""

import asyncio
from pathlib import Path

from fetch_node import LED, fetch_node

LONG_MS, TIMEOUT_S = 600_000, 20


async def test_response_as_large_as_max_bytes_does_not_wait_for_more(tmp_path: Path) -> None:
    """Kafka bounds min_bytes by max_bytes (KafkaApis.handleFetchRequest)."""
    async with fetch_node(tmp_path) as node:
        for _ in range(5):
            node.lead(1)
        node.hear(2, 5)
        node.hear(3, 5)
        async with asyncio.timeout(TIMEOUT_S):
            data = await node.read(LED, 0, max_wait_ms=LONG_MS, min_bytes=1_000, max_bytes=1)
    assert data.records is not None and len(data.records) < 1_000
