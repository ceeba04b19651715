"""Admin routes for this node's log directories: their contents and moves between them.

Other nodes serve their own directories.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from tierlog.base.types import TopicPartition
from tierlog.broker.gateway.requests import read_body
from tierlog.broker.maintenance.directory_move import DirectoryMove
from tierlog.broker.maintenance.directory_moves import DirectoryMoves
from tierlog.protocol.errors import ErrorCode


class DirectoryMoveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`directory`: its absolute path."""

    topic: str
    partition: int
    directory: str


def directory_routes(current: Callable[[], DirectoryMoves]) -> list[web.AbstractRouteDef]:
    async def status(request: web.Request) -> web.Response:
        return web.json_response(_view(current(), request.query.get("topic")))

    async def move(request: web.Request) -> web.Response:
        moves, body = current(), await read_body(request, DirectoryMoveRequest)
        error = moves.move(TopicPartition(body.topic, body.partition), body.directory)
        found = None if error is ErrorCode.NONE else error.name
        return web.json_response({**msgspec.structs.asdict(body), "error": found})

    return [web.get("/v1/directories", status), web.post("/v1/directories/move", move)]


def _view(moves: DirectoryMoves, topic: str | None) -> dict[str, Any]:
    """`partitions`: the directory of each partition of `topic`; empty without a topic."""
    return {
        "directories": [
            {"directory": str(one.path.absolute()), "failure": one.failure, "full": one.is_full}
            for one in moves.directories.all
        ],
        "partitions": [
            {"topic": name.topic, "partition": name.partition, "directory": str(one.path.absolute())}
            for one in moves.directories.all
            for name in (moves.directories.partitions_in(one) if topic is not None else ())
            if name.topic == topic
        ],
        "moves": [_move_view(move) for move in moves.under_way if topic in (None, move.name.topic)],
    }


def _move_view(move: DirectoryMove) -> dict[str, Any]:
    return {
        "topic": move.name.topic,
        "partition": move.name.partition,
        "from": str(move.source.path.absolute()),
        "to": str(move.target.path.absolute()),
        "copied_bytes": move.copied_bytes,
        "bytes": move.replica.log.size_bytes,
        "offset_lag": move.offset_lag,
    }
