"""Admin routes of versions: what this node supports and sees, and the end of an upgrade.

`POST /v1/versions/finalize` raises the cluster's format version (`tierlog.format`). The leader of the quorum
refuses that while a broker or a member of the quorum does not support it (ADR 0050).
"""

from typing import Annotated, Any

import msgspec
from aiohttp import web

from tierlog.base.clock import Clock
from tierlog.broker.gateway.requests import decode_body, http_error
from tierlog.metadata.controller.commands import UpdateFeatures
from tierlog.metadata.controller.features import FORMAT
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.quorum.status import NodeStatus
from tierlog.metadata.versions import WIRE_VERSIONS, NodeVersions, common_version, own_versions
from tierlog.protocol.errors import ErrorCode


class Finalization(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`format`: the new version. `dry_run`: only check that it is possible."""

    format: Annotated[int, msgspec.Meta(ge=1, le=32767)]
    dry_run: bool = False


def version_routes(metadata: MetadataClient, clock: Clock) -> list[web.AbstractRouteDef]:
    started_at_ms = clock.now_ms()  # the routes are made once, when the node starts

    async def show(_: web.Request) -> web.Response:
        return web.json_response({**_view(metadata), "started_at_ms": started_at_ms})

    async def finalize(request: web.Request) -> web.Response:
        body = await decode_body(request, Finalization)
        before = metadata.image.format_version
        try:
            reply = await metadata.submit(
                UpdateFeatures(levels={FORMAT: body.format}, validate_only=body.dry_run)
            )
        except MetadataUnavailable as unavailable:
            raise http_error(web.HTTPServiceUnavailable, str(unavailable)) from None
        if reply.error is not ErrorCode.NONE:
            raise http_error(web.HTTPConflict, reply.message or reply.error.name)
        return web.json_response({"format": metadata.image.format_version, "before": before})

    return [web.get("/v1/versions", show), web.post("/v1/versions/finalize", finalize)]


def _view(metadata: MetadataClient) -> dict[str, Any]:
    """`format`: the finalised version. `peers`: nodes that have announced their versions to this one."""
    status = metadata.status() if metadata.started else None
    learners = status.learners if isinstance(status, NodeStatus) else {}
    members = {} if status is None else {**status.voters, **learners}
    seen = {one: metadata.versions_of(one) for one in sorted(members) if one != metadata.node_id}
    return {
        "node_id": metadata.node_id,
        "cluster_id": metadata.cluster_id,
        **_versions(own_versions()),
        "format": metadata.image.format_version,
        "peers": [_peer(one, found) for one, found in seen.items() if found is not None],
        "problems": [{"node_id": one, "why": why} for one, why in sorted(metadata.version_problems.items())],
    }


def _peer(node_id: int, found: NodeVersions) -> dict[str, Any]:
    uses = common_version(WIRE_VERSIONS, found.wire)
    return {"node_id": node_id, **_versions(found), "uses": uses}


def _versions(found: NodeVersions) -> dict[str, Any]:
    return {
        "version": found.version,
        "commit": found.commit or None,
        "formats": list(found.formats),
        "wire": list(found.wire),
    }
