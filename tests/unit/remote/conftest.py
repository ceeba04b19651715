"""A tiered partition with two replicas, and its store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from faulty_store import FaultyStore
from tier_pair import Pair, opened_pair

from tierlog.tiering.memory_store import MemoryStore


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
async def pair(tmp_path: Path, store: FaultyStore) -> AsyncIterator[Pair]:
    async with opened_pair(tmp_path, store) as pair:
        yield pair
