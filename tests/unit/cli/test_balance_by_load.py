"""`tierlog partition balance --explain` with the address of a controller that is no broker."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from aiohttp import web
from cli_inline import call

NOTHING = {"faults": ["broker 2 is fenced"], "outcomes": [], "actions": []}


async def serve(documents: Mapping[str, Any], runners: list[web.AppRunner]) -> str:
    """The URL of a node with these documents by path and query."""

    async def respond(request: web.Request) -> web.Response:
        document = documents.get(request.path_qs)
        if document is None:
            status = 404 if request.query else 409
            return web.json_response({"error": "no topic" if request.query else "no broker"}, status=status)
        return web.json_response(document)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", respond)
    runner = web.AppRunner(application)
    runners.append(runner)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


@pytest.fixture
async def controller() -> AsyncIterator[str]:
    """The admin URL of controller 9 of a cluster whose broker 1 measures, and whose broker 2 is fenced."""
    runners: list[web.AppRunner] = []
    broker = await serve({"/v1/partitions/balance/load": NOTHING}, runners)
    rows = [{"id": 2, "fenced": True, "admin_url": "http://127.0.0.1:1"}]
    rows += [{"id": 1, "fenced": False, "admin_url": broker}]
    cluster = {"node_id": 9, "brokers": rows, "topics": []}
    yield await serve({"/v1/quorum": {"leader": 9}, "/v1/cluster": cluster}, runners)
    for runner in runners:
        await runner.cleanup()


async def test_moves_whose_topic_was_deleted_are_not_counted_as_changed() -> None:
    runners: list[web.AppRunner] = []
    loads = {"stored_bytes": 0, "written_bytes_per_s": 0, "led_bytes_per_s": 0}
    broker = {"id": 1, "rack": None, "disk_bytes": 1, "free_bytes": 1, "now": loads, "then": loads}
    move = {"partition": 0, "before": [1, 2], "after": [2, 1], "copied_bytes": 0, "reason": "-"}
    outcome = {"partition": 0, "error": None, "message": None}
    moved = {
        "faults": [],
        "seconds": 1.0,
        "brokers": [broker],
        "hot": [],
        "actions": [{"topic": "orders", **move}, {"topic": "gone", **move}],
        "outcomes": [{"topic": "orders", **outcome}, {"topic": "gone", **outcome}],
    }
    rows = [{"topic": "orders", "partition": 0, "replicas": [2, 1]}]
    documents = {
        "/v1/quorum": {"leader": 1},
        "/v1/cluster": {"node_id": 1, "brokers": [{"id": 1, "fenced": False}], "topics": []},
        "/v1/partitions/balance/load": moved,
        "/v1/partitions?topic=orders": {"partitions": rows},
    }
    url = await serve(documents, runners)
    ended = await asyncio.to_thread(call, "partition", "balance", "--execute", "--admin", url)
    assert ended.code == 0 and "1 partition changed, and 1 not" in ended.stderr, ended
    for runner in runners:
        await runner.cleanup()


async def test_an_active_broker_measures_if_the_address_is_that_of_a_controller(controller: str) -> None:
    ended = await asyncio.to_thread(call, "partition", "balance", "--explain", "--admin", controller)
    assert ended.code == 0 and "not now: broker 2 is fenced" in ended.stderr, ended
