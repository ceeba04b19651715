"""Entries of the admin API in the audit log: no body keeps a change out of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from tierlog.base.clock import SystemClock
from tierlog.broker.audit.log import AuditLog
from tierlog.broker.gateway.audited import audited
from tierlog.config.node import NodeSettings


async def entry_of(directory: Path, path: str, body: bytes) -> dict[str, Any]:
    """The entry for a request to a node that carries out what /done gets, and redirects from /elsewhere."""

    async def done(_: web.Request) -> web.Response:
        return web.Response()

    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("/done")

    audit = AuditLog(NodeSettings(audit_log_dir=str(directory)), 7, SystemClock())
    middlewares: Any = [audited(audit)]
    application = web.Application(middlewares=middlewares)
    application.add_routes([web.post("/done", done), web.post("/elsewhere", elsewhere)])
    async with TestClient(TestServer(application)) as client:
        response = await client.post(path, data=body, allow_redirects=False)
        assert response.status < 400
    await audit.close()
    [line] = (directory / "audit-7.jsonl").read_text().splitlines()
    found: dict[str, Any] = json.loads(line, parse_constant=pytest.fail)
    return found


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 5_000 + b"]" * 5_000,
        b'{"moves":[{"topic":"t","partition":0,"replicas":' + b"[" * 700 + b"]" * 700 + b"}]}",
        b'{"moves":[{"topic":"t","partition":' + b"[" * 700 + b"]" * 700 + b',"replicas":[1]}]}',
        b'{"moves":[{"topic":"t","partition":0,"replicas":[NaN]}]}',
        b"\xff",
    ],
    ids=["too deep", "deep replicas", "deep partition", "NaN", "not UTF-8"],
)
async def test_no_body_keeps_a_change_out_of_the_log(tmp_path: Path, body: bytes) -> None:
    entry = await entry_of(tmp_path, "/done", body)
    assert entry["resources"][0] == {"type": "PATH", "name": "/done", "outcome": "OK"}


async def test_redirected_change_is_not_recorded_as_done(tmp_path: Path) -> None:
    entry = await entry_of(tmp_path, "/elsewhere", b"")
    assert entry["resources"] == [{"type": "PATH", "name": "/elsewhere", "outcome": "HTTP_307"}]
