"""Commands with several seeds, of which the first is a paused process: they use the others at once."""

import os
import signal
import time
from collections.abc import Iterator

import pytest
from cli_inline import call

from tierlog.client import cluster
from tierlog.client.cluster import parse_address
from tierlog.client.connection import Connection, ConnectionOptions
from tierlog.client.errors import Silent
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def paused(tierlog_broker_factory: TierlogBrokerFactory) -> Iterator[TierlogBroker]:
    """A process that is stopped by SIGSTOP: it accepts connections and never responds."""
    broker = tierlog_broker_factory()
    os.kill(broker.pid, signal.SIGSTOP)
    yield broker
    os.kill(broker.pid, signal.SIGCONT)


def test_commands_use_the_seeds_that_respond(
    paused: TierlogBroker, tierlog_session_broker: TierlogBroker
) -> None:
    live = tierlog_session_broker
    bootstrap = ("--bootstrap", f"{paused.bootstrap},{live.bootstrap}")
    admin = ("--admin", f"{paused.admin_url},{live.admin_url}")
    for words in (
        ("topic", "list", *bootstrap),
        ("cluster", "info", *bootstrap),
        ("broker", "list", *bootstrap),
        ("broker", "list", *admin),
        ("cluster", "health", *bootstrap),
        ("cluster", "health", *admin),
    ):
        ended = call(*words)
        assert ended.code == 0 and "No response" not in ended.stderr, (words, ended)


def test_paused_brokers_alone_are_named(paused: TierlogBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT_S", 0.5)
    ended = call("topic", "list", "--bootstrap", f"{paused.bootstrap},127.0.0.1:1")
    assert ended.code == 3
    assert f"{paused.bootstrap}: it accepts connections, but" in ended.stderr
    assert "127.0.0.1:1: Connection refused" in ended.stderr


def test_notice_of_a_slow_response_does_not_prolong_the_wait(paused: TierlogBroker) -> None:
    notices: list[str] = []
    options = ConnectionOptions(slow_s=5.8, on_slow=lambda api, *_: notices.append(api))
    begun = time.monotonic()
    with pytest.raises(Silent, match="within 6 s"):
        Connection(parse_address(paused.bootstrap), 6.0, options=options)
    assert time.monotonic() - begun < 11 and notices == ["ApiVersions"]
