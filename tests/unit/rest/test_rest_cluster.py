"""Connections of a principal: neither requests that wait nor silent brokers hold up other requests."""

import asyncio
import gc
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from connection_harness import turns
from scripted_broker import broker

from tierlog.base.tasks import TaskGroup
from tierlog.client.cluster import parse_address
from tierlog.client.connection import Address
from tierlog.client.errors import AuthenticationFailed
from tierlog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tierlog.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from tierlog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tierlog.rest import cluster as cluster_module
from tierlog.rest.cluster import Cluster
from tierlog.rest.connection import ANONYMOUS

PRODUCE = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[])


class SlowBroker:
    """Responds to the first `held` Produce requests, and to all changes of topics, once it is released."""

    def __init__(self, held: int) -> None:
        self.begun = threading.Semaphore(0)
        self.released = threading.Event()
        self._held = iter(range(held))

    def respond(self, name: str, port: int) -> Any:
        match name:
            case "Produce":
                if next(self._held, None) is not None:
                    self._wait()
                return ProduceResponse(responses=[])
            case "CreateTopics":
                self._wait()
                return CreateTopicsResponse(topics=[])
            case _:
                return MetadataResponse(
                    brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port)], topics=[]
                )

    def _wait(self) -> None:
        self.begun.release()
        self.released.wait(60)


@pytest.fixture
async def tasks() -> AsyncIterator[TaskGroup]:
    group = TaskGroup(lambda name, failure: None)
    yield group
    await group.close()


async def test_waiting_requests_hold_up_no_others_of_the_login(tasks: TaskGroup) -> None:
    slow = SlowBroker(held=1)
    with broker(slow.respond) as address:
        cluster = Cluster([parse_address(address)], ANONYMOUS, None, tasks)
        await cluster.metadata([])
        waiting = [
            asyncio.create_task(cluster.call_in_lane(PRODUCE, 1)),
            asyncio.create_task(cluster.call(CreateTopicsRequest(topics=[], timeout_ms=30_000))),
        ]
        for _ in waiting:
            await asyncio.to_thread(slow.begun.acquire)
        await cluster.metadata([])
        await cluster.call_in_lane(PRODUCE, 1)
        assert not any(one.done() for one in waiting)
        slow.released.set()
        await asyncio.gather(*waiting)
        await cluster.call_in_lane(PRODUCE, 1)
        assert len(cluster._lanes[parse_address(address)]) == 3
        cluster.close()


async def test_lanes_are_bounded_and_more_while_none_moves(
    tasks: TaskGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "LANES", 2)
    monkeypatch.setattr(cluster_module, "LANES_MAX", 3)
    slow = SlowBroker(held=2)
    with broker(slow.respond) as address:
        cluster = Cluster([parse_address(address)], ANONYMOUS, None, tasks)
        await cluster.metadata([])
        waiting = [asyncio.create_task(cluster.call_in_lane(PRODUCE, 1)) for _ in range(2)]
        for _ in waiting:
            await asyncio.to_thread(slow.begun.acquire)
        monkeypatch.setattr(cluster_module, "HELD_UP_S", 0.0)
        await cluster.call_in_lane(PRODUCE, 1)
        waiting += [asyncio.create_task(cluster.call_in_lane(PRODUCE, 1)) for _ in range(9)]
        await asyncio.gather(*waiting[2:])
        assert len(cluster._lanes[parse_address(address)]) == 3
        slow.released.set()
        await asyncio.gather(*waiting)
        cluster.close()


async def test_silent_bootstrap_broker_is_not_waited_for(tasks: TaskGroup) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, broker(SlowBroker(0).respond) as address:
        seeds = [("127.0.0.1", silent.getsockname()[1]), parse_address(address)]
        cluster = Cluster(seeds, ANONYMOUS, None, tasks)
        await cluster.metadata([])
        cluster.close()


async def test_login_that_several_brokers_refuse_is_reported_once(
    tasks: TaskGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "STAGGER_S", 0.0)
    unretrieved: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: unretrieved.append(context["message"])
    )
    last_begun = asyncio.Event()

    async def refuse(address: Address, *_: Any) -> Any:
        if address[0] == "last":
            last_begun.set()
        else:
            await last_begun.wait()
        raise AuthenticationFailed("wrong password")

    monkeypatch.setattr(cluster_module, "connect", refuse)
    cluster = Cluster([("first", 1), ("last", 1)], ANONYMOUS, None, tasks)
    with suppress(AuthenticationFailed):  # pytest.raises would keep the tasks alive
        await cluster.authenticate()
    await turns()
    gc.collect()
    assert unretrieved == []
