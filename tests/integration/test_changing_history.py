"""Real clients read tiered topics again and again from their beginnings, while segments are uploaded, dropped
from local disk, merged, compacted and deleted in S3.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from changing_history import PASSES, TOPICS, ChangingHistory, Client, running_history
from history_readers import CLIENTS

from tierlog.testing import TierlogBrokerFactory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def history(tierlog_broker_factory: TierlogBrokerFactory, tmp_path: Path) -> Iterator[ChangingHistory]:
    with running_history(tierlog_broker_factory, tmp_path) as history:
        yield history


def test_clients_read_what_was_produced_while_history_changes(history: ChangingHistory) -> None:
    def read(client: Client) -> int:
        passes = 0
        while passes < PASSES or not history.has_changed():
            history.read_all(client)
            passes += 1
        return passes

    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        passes = list(pool.map(read, CLIENTS.values()))
    history.stop()
    for client in CLIENTS.values():
        history.read_all(client)
    assert min(passes) >= PASSES
    assert history.passes == len(TOPICS) * (sum(passes) + len(CLIENTS))
