"""Admin routes for this node's log directories: their contents in both tiers and moves between them.

Other nodes serve their own directories.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from tierlog.base.types import TopicIdPartition, TopicPartition
from tierlog.broker.gateway.node import Serving
from tierlog.broker.gateway.requests import decode_body
from tierlog.broker.maintenance.directory_move import DirectoryMove
from tierlog.broker.remote.tier_views import remote_bytes
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.log_dir import LogDirectory
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.protocol.errors import ErrorCode


class DirectoryMoveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`directory`: its absolute path."""

    topic: str
    partition: int
    directory: str


def directory_routes(current: Callable[[], Serving], metadata: MetadataClient) -> list[web.AbstractRouteDef]:
    async def status(request: web.Request) -> web.Response:
        topic = request.query.get("topic")
        replicas = list(current().replicas)
        # in a thread: the image is immutable, and sums over all manifests take a while
        remote = await asyncio.to_thread(_remote_sizes, metadata.image, [one.id for one in replicas])
        return web.json_response(_view(current(), topic, remote))

    async def move(request: web.Request) -> web.Response:
        moves, body = current().moves, await decode_body(request, DirectoryMoveRequest)
        error = moves.move(TopicPartition(body.topic, body.partition), body.directory)
        found = None if error is ErrorCode.NONE else error.name
        return web.json_response({**msgspec.structs.asdict(body), "error": found})

    return [web.get("/v1/directories", status), web.post("/v1/directories/move", move)]


def _remote_sizes(image: ClusterImage, where: list[TopicIdPartition]) -> dict[TopicIdPartition, int]:
    return {one: remote_bytes(image.remote_partition(*one)) for one in where if one in image.remote}


def _view(serving: Serving, topic: str | None, remote: Mapping[TopicIdPartition, int]) -> dict[str, Any]:
    """`partitions`: those of `topic`; empty without a topic."""
    directories, moves = serving.moves.directories, serving.moves.under_way
    held = {one: _replicas_in(serving, one) for one in directories.all}
    return {
        "directories": [
            {
                "directory": str(one.path.absolute()),
                "failure": one.failure,
                "full": one.is_full,
                **_space(one),
                "partitions": len(replicas),
                "local_bytes": sum(replica.log.size_bytes for replica in replicas),
                "remote_bytes": sum(remote.get(replica.id, 0) for replica in replicas if replica.is_leader),
            }
            for one, replicas in held.items()
        ],
        "partitions": [
            {
                "topic": replica.name.topic,
                "partition": replica.name.partition,
                "directory": str(one.path.absolute()),
                "leads": replica.is_leader,
                "local_bytes": replica.log.size_bytes,
                "remote_bytes": remote.get(replica.id, 0),
            }
            for one, replicas in held.items()
            for replica in replicas
            if replica.name.topic == topic
        ],
        "moves": [_move_view(move) for move in moves if topic in (None, move.name.topic)],
    }


def _replicas_in(serving: Serving, directory: LogDirectory) -> list[Replica]:
    names = serving.moves.directories.partitions_in(directory)
    return [replica for name in names if (replica := serving.replicas.get(*name)) is not None]


def _space(directory: LogDirectory) -> dict[str, int | None]:
    try:
        space = directory.space() if directory.failure is None else None
    except OSError:
        space = None
    total_bytes, usable_bytes = (None, None) if space is None else space
    return {"total_bytes": total_bytes, "usable_bytes": usable_bytes}


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
