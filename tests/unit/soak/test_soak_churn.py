"""Churn against a real broker process: objects of finished operations are released."""

from pathlib import Path

import pytest
from churn import Clients, Inspected, play

TIMES = 25


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_churn_leaves_no_objects(tmp_path: Path) -> None:
    kinds = [
        "members", "static_members", "group_members", "group_commits", "pending_members", "group_questions",
        "topics", "unknown_topics", "producers", "client_ids", "quotas", "connections", "dropped_connections",
        "malformed_frames", "waiting_fetches", "fetch_sessions", "segments",
    ]  # fmt: skip
    broker = Inspected(tmp_path)
    try:
        found = play(broker, Clients(broker.bootstrap), kinds, TIMES)
    finally:
        broker.close()
    assert found["kept"] == {}, found
    assert max(found["descriptors"]) - min(found["descriptors"]) <= len(kinds), found
