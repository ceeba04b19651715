"""Entries of the admin API in the audit log: no body keeps a change out of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from tierlog.base.clock import SystemClock
from tierlog.broker.audit.log import AuditLog
from tierlog.broker.gateway.audited import REFUSED_MAX, audited
from tierlog.config.node import NodeSettings


async def entries_of(directory: Path, path: str, body: bytes) -> list[dict[str, Any]]:
    """The entries for a request to a node that carries out what /done gets, redirects from /elsewhere, and
    fails at /broken."""

    async def done(_: web.Request) -> web.Response:
        return web.Response()

    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("/done")

    async def broken(_: web.Request) -> web.Response:
        raise web.HTTPInternalServerError

    audit = AuditLog(NodeSettings(audit_log_dir=str(directory)), 7, SystemClock())
    middlewares: Any = [audited(audit)]
    application = web.Application(middlewares=middlewares)
    routes = {"/done": done, "/elsewhere": elsewhere, "/broken": broken}
    application.add_routes([web.post(each, handler) for each, handler in routes.items()])
    async with TestClient(TestServer(application)) as client:
        await client.post(path, data=body, allow_redirects=False)
    await audit.close()
    lines = (directory / "audit-7.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


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
    [entry] = await entries_of(tmp_path, "/done", body)
    assert entry["resources"][0] == {"type": "PATH", "name": "/done", "outcome": "OK"}


async def test_redirected_change_is_not_recorded_as_done(tmp_path: Path) -> None:
    [entry] = await entries_of(tmp_path, "/elsewhere", b"")
    assert entry["resources"] == [{"type": "PATH", "name": "/elsewhere", "outcome": "HTTP_307"}]


@pytest.mark.parametrize("path", ["/done", "/broken"])
async def test_each_move_of_a_long_plan_has_an_entry(tmp_path: Path, path: str) -> None:
    """A request that failed may have been carried out in part."""
    moves = [{"topic": "t", "partition": number, "replicas": [1]} for number in range(12_000)]
    entries = await entries_of(tmp_path, path, json.dumps({"moves": moves}).encode())
    resources = [one for entry in entries for one in entry["resources"]]
    names = [one["name"] for one in resources if one["type"] == "PARTITION"]
    assert names == [f"t-{number}" for number in range(12_000)]
    assert not any("omitted" in entry for entry in entries)


async def test_refused_plan_says_how_many_moves_it_had(tmp_path: Path) -> None:
    moves = [{"topic": "t", "partition": number, "replicas": [1]} for number in range(12_000)]
    entries = await entries_of(tmp_path, "/elsewhere", json.dumps({"moves": moves}).encode())
    assert sum(len(entry["resources"]) for entry in entries) == 1 + REFUSED_MAX
    assert {entry["omitted"] for entry in entries} == {12_000 - REFUSED_MAX}
