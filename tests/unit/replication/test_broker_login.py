"""Logins of brokers at each other, on a real listener, and their renewal on open connections."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from connection_harness import HEARTBEAT, METADATA, turns, until
from immutables import Map
from sasl_logins import LoginBroker

from tierlog.base.network import Unreachable
from tierlog.broker.platform import TcpNetwork
from tierlog.broker.replication import broker_login
from tierlog.broker.replication.broker_connection import BrokerConnection
from tierlog.broker.replication.broker_login import BrokerLogin
from tierlog.metadata.image import BrokerImage
from tierlog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tierlog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

SESSION_MS = 10_000
SECOND_MS = 1_000


class Pair:
    """A listener whose logins last for SESSION_MS by its own clock, and a connection to it."""

    def __init__(self, broker: LoginBroker, connection: BrokerConnection) -> None:
        self.broker, self.connection = broker, connection
        self.counts = broker.logins.counts

    async def ask(self, topics: int = 0, **more: Any) -> int:
        """The harness responds with the number of topics."""
        response = await self.connection.call(METADATA, 9, request_of(topics), 10, **more)
        return int(response.controller_id)


def request_of(topics: int) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name="t")] * topics)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    broker = LoginBroker(session_ms=SESSION_MS)
    await broker.start()
    host, port = broker.address
    peer = BrokerImage(
        broker_id=2,
        broker_epoch=1,
        incarnation=UUID(int=2),
        host=host,
        port=port,
        admin_url="http://127.0.0.1:9644",
        fenced=False,
    )
    login = BrokerLogin(mechanism="SCRAM-SHA-512", user="ada", password="lovelace")
    connection = await TcpNetwork("TEST", login=login).connect(peer, "test")
    yield Pair(broker, connection)
    connection.close()
    await broker.close()


@pytest.fixture
def due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each login is due for renewal at the next call."""
    monkeypatch.setattr(broker_login, "RENEWED_AFTER", 0)
    monkeypatch.setattr(broker_login, "RENEWED_AFTER_MIN_S", 0)


async def test_login_is_not_renewed_before_it_is_due(pair: Pair) -> None:
    pair.broker.clock.at_ms += SECOND_MS
    assert [await pair.ask(topics) for topics in range(5)] == [*range(5)]
    assert (pair.counts.successful, pair.counts.reauthenticated) == (1, 0)


async def test_login_is_renewed_on_the_open_connection(due: None, pair: Pair) -> None:
    for turn in range(1, 6):
        pair.broker.clock.at_ms += SESSION_MS - 1 if turn < 5 else 2 * SESSION_MS
        assert await pair.ask(turn) == turn
        assert (pair.counts.reauthenticated, pair.counts.expired) == (turn, 0)
    assert pair.counts.successful == len(pair.broker.connections) == 1


async def test_login_that_does_not_expire_any_more_is_not_renewed(
    due: None, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.broker.clock.at_ms += SECOND_MS
    monkeypatch.setattr(pair.broker.logins, "session_ms", 0)
    assert [await pair.ask(topics) for topics in range(3)] == [0, 1, 2]
    assert (pair.counts.reauthenticated, pair.connection.is_open) == (1, True)


async def test_next_request_of_a_call_waits_for_the_login(due: None, pair: Pair) -> None:
    found: list[int] = []

    def again(response: Any) -> MetadataRequest | None:
        found.append(response.controller_id)
        pair.broker.clock.at_ms += SESSION_MS - 1
        return request_of(len(found)) if len(found) < 5 else None

    pair.broker.clock.at_ms += SECOND_MS
    assert await pair.ask(follow_up=again) == 4
    assert found == [0, 1, 2, 3, 4]
    assert (pair.counts.reauthenticated, pair.counts.expired) == (5, 0)


async def test_calls_that_wait_share_a_login(due: None, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.broker.clock.at_ms += SECOND_MS
    monkeypatch.setattr(broker_login, "RENEWED_AFTER", 0.85)
    assert await asyncio.gather(*map(pair.ask, range(10))) == [*range(10)]
    assert pair.counts.reauthenticated == 1


async def test_call_in_progress_is_answered_before_the_login(pair: Pair) -> None:
    waiting = pair.broker.hold_heartbeats()
    heartbeat = asyncio.create_task(pair.connection.call(HEARTBEAT, 4, HeartbeatRequest(group_id="g"), 10))
    await until(lambda: bool(waiting))
    pair.broker.clock.at_ms += SECOND_MS
    pair.connection._renew_at = 0.0
    later = asyncio.create_task(pair.ask(3))
    await turns()
    assert not heartbeat.done() and not later.done()
    waiting[0].set_result(HeartbeatResponse())
    await heartbeat
    assert await later == 3
    assert pair.counts.reauthenticated == 1


async def test_refused_login_ends_the_connection_and_all_calls(due: None, pair: Pair) -> None:
    pair.broker.clock.at_ms += SECOND_MS
    pair.broker.users = Map()
    results = await asyncio.gather(*map(pair.ask, range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [Unreachable] * 3
    assert "refuses the login of ada" in str(results[0])
    assert not pair.connection.is_open
    assert pair.counts.reauthentication_failed == 1
