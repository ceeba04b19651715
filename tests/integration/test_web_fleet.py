"""Requests of the web page to the other nodes: those that hang do not keep the others from being read."""

import asyncio
import socket
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from tierlog.broker.gateway.web import fleet
from tierlog.broker.gateway.web.fleet import Fleet

HANGING = 40
PATHS = [f"/v1/{one}" for one in range(10)]


def node_that_knows(urls: dict[int, str]) -> Any:
    brokers = {one: SimpleNamespace(broker_id=one, admin_url=url) for one, url in urls.items()}
    metadata = SimpleNamespace(image=SimpleNamespace(brokers=brokers), started=False)
    return SimpleNamespace(settings=SimpleNamespace(node_id=0), metadata=metadata)


async def serve(handler: Any) -> tuple[web.AppRunner, str]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def test_nodes_that_hang_do_not_keep_others_from_being_read() -> None:
    """Their ids are lower, so their requests begin first."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"path": request.path})

    runner, url = await serve(answer)
    with ExitStack() as stack:
        hanging = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(HANGING)
        ]  # they never accept
        urls = {
            one: f"http://127.0.0.1:{listener.getsockname()[1]}" for one, listener in enumerate(hanging, 1)
        }
        urls[HANGING + 1] = url
        wanted = [(one, path) for one in urls for path in PATHS]
        found = await Fleet(node_that_knows(urls), {}, None).ask(make_mocked_request("GET", "/"), wanted)
    await runner.cleanup()
    assert set(found.documents) == {HANGING + 1}
    assert set(found.documents[HANGING + 1]) == set(PATHS)
    assert sorted(found.unread) == sorted(
        f"node {one}: no response within {fleet.TIMEOUT_S:.0f} s" for one in range(1, HANGING + 1)
    )


async def test_an_own_document_that_hangs_does_not_keep_the_page_from_being_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a disk that hangs. All users of the page would wait for it."""
    monkeypatch.setattr(fleet, "OWN_TIMEOUT_S", 0.1)

    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"role": "leader"})

    handlers = {"/v1/directories": hang, "/v1/quorum": answer}
    wanted = [(0, path) for path in handlers]
    found = await Fleet(node_that_knows({}), handlers, None).ask(make_mocked_request("GET", "/"), wanted)
    assert found.documents == {0: {"/v1/quorum": {"role": "leader"}}}
    assert found.unread == ["/v1/directories of node 0: no response within 0 s"]


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, b"[1]", "the response is not a JSON object"),
        (200, b"{" * 100_000, "the response is not a JSON object"),
        (200, b" " * (fleet.RESPONSE_BYTES_MAX + 1), "the response is too long"),
        (403, b'{"error": "no role"}', "status 403, no role"),
        (302, b"", "status 302, "),
    ],
)
async def test_bad_responses_are_named(status: int, body: bytes, why: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers={"Location": "/elsewhere"})

    runner, url = await serve(answer)
    found = await Fleet(node_that_knows({1: url}), {}, None).ask(
        make_mocked_request("GET", "/"), [(1, "/v1/quorum")]
    )
    await runner.cleanup()
    assert found.unread == [f"node 1: {why}"]
    assert not found.documents


@pytest.mark.parametrize("status", [404, 409])
async def test_document_that_a_node_does_not_have_is_no_failure(status: int) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status)

    runner, url = await serve(answer)
    wanted = [(1, "/v1/groups")]
    found = await Fleet(node_that_knows({1: url, 2: ""}), {}, None).ask(
        make_mocked_request("GET", "/"), [*wanted, (2, "/v1/groups")]
    )
    await runner.cleanup()
    assert found.unread == ["node 2: it has registered no address of its admin API"]


async def test_number_of_nodes_that_are_asked_is_bounded() -> None:
    many = dict.fromkeys(range(1, 1000), "http://127.0.0.1:1")
    assert len(Fleet(node_that_knows(many), {}, None).urls()) == fleet.NODES_MAX
