"""Admin routes about the bucket: whether it is available, the scrubber, `tier verify` and `tier gc`.

`tier verify` sends a request for each piece of a segment, so that it can show its progress and continue after
an interruption; the node keeps no state between requests.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any
from uuid import UUID

import msgspec
from aiohttp import web

from tierlog.base.types import TopicIdPartition
from tierlog.broker.gateway.node import Serving
from tierlog.broker.gateway.requests import decode_body, http_error, parsing_parameters
from tierlog.broker.gateway.tier_errors import tier_errors_as_http
from tierlog.broker.remote.manifest_check import ManifestFault
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.tiering.bucket_audit import LISTED, QUEUED, UNKNOWN, UNREADABLE, BucketAudit
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound, ObjectStoreError
from tierlog.tiering.store_health import STORE_FAILURES
from tierlog.tiering.verifier import UnreadablePage

VERIFY_BYTES_PER_REQUEST = 64 << 20
VERIFY_S_PER_REQUEST = 10.0
"""A verify request stops at the end of the chunk in which it reaches either limit, so that the client sees
progress."""

SEGMENTS_PER_REQUEST = 1000
ROOTS_PER_TURN = 16
"""Roots that are read concurrently."""


class VerifyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`uuid`: segment id from `GET /v1/tier/segments`. `position`: byte position in the segment at which to
    continue."""

    topic: str
    partition: int
    base_offset: int
    uuid: UUID
    position: int = 0


class RootsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`topic`: None for all. `after`: topic id and number of the partition after which to continue; the
    `next` of the previous response."""

    topic: str | None = None
    after: tuple[UUID, int] | None = None


def tier_check_routes(current: Callable[[], Serving], metadata: MetadataClient) -> list[web.AbstractRouteDef]:
    async def store(_: web.Request) -> web.Response:
        """The object store, as this node's circuit breaker sees it."""
        health = current().remote.store.health
        view = {"available": health.is_available, "state": health.state.value, "error": None}
        return web.json_response(view if health.is_available else {**view, "error": health.last_error})

    async def scrub(_: web.Request) -> web.Response:
        return web.json_response(_scrub_view(current()))

    async def start_scrub(_: web.Request) -> web.Response:
        current().bucket_scrubber.begin()
        return web.json_response(_scrub_view(current()))

    async def segments(request: web.Request) -> web.Response:
        with _store_errors_as_http():
            query = request.query
            with parsing_parameters():
                topic, partition = query["topic"], int(query["partition"])
                offset = int(query.get("offset", "0"))
            rows = await _segments(current(), _find_partition(metadata.image, topic, partition), offset)
            return web.json_response({"segments": rows})

    async def verify(request: web.Request) -> web.Response:
        body = await decode_body(request, VerifyRequest)
        with _store_errors_as_http():
            partition = _find_partition(metadata.image, body.topic, body.partition)
            return web.json_response(await _verify(current(), partition, body))

    async def roots(request: web.Request) -> web.Response:
        body = await decode_body(request, RootsRequest)
        with _store_errors_as_http():
            return web.json_response(await _check_roots(current(), metadata.image, body))

    async def documents(_: web.Request) -> web.Response:
        with _store_errors_as_http():
            found = [fault async for fault in current().manifest_check.documents()]
            rows = [_fault_row(fault) for fault in found if fault is not None]
            return web.json_response({"checked": len(found), "faults": rows})

    async def audit(_: web.Request) -> web.Response:
        with _store_errors_as_http():
            return web.json_response(_audit_view(await current().remote.auditor.run(_no_throttle)))

    return [
        web.get("/v1/tier/store", store),
        web.get("/v1/tier/scrub", scrub),
        web.post("/v1/tier/scrub", start_scrub),
        web.get("/v1/tier/segments", segments),
        web.post("/v1/tier/verify", verify),
        web.post("/v1/tier/roots", roots),
        web.post("/v1/tier/documents", documents),
        web.get("/v1/tier/audit", audit),
    ]


def _scrub_view(serving: Serving) -> dict[str, Any]:
    scrubber = serving.bucket_scrubber
    return {
        "progress": scrubber.progress,
        "passes": scrubber.passes,
        "segments": scrubber.segments,
        "read_bytes": scrubber.bytes_read,
        "damaged": scrubber.damaged,
        "unchecked": scrubber.unchecked,
        "manifests": [_fault_row(fault) for fault in scrubber.manifest_faults],
        "audit": _audit_view(scrubber.audit),
    }


def _audit_view(audit: BucketAudit) -> dict[str, Any]:
    kinds = (LISTED, QUEUED, UNKNOWN, UNREADABLE)
    return {
        "objects": {kind: audit.objects[kind] for kind in kinds},
        "bytes": {kind: audit.bytes[kind] for kind in kinds},
        "unknown": [{"object": info.key, "bytes": info.size} for info in audit.unknown],
    }


async def _segments(serving: Serving, partition: TopicIdPartition, offset: int) -> list[dict[str, Any]]:
    """Rows of segments, and of unreadable manifest pages, which have an `error`."""
    rows: list[dict[str, Any]] = []
    async with aclosing(serving.remote.verifier.entries(partition, offset)) as entries:
        async for entry in entries:
            row: dict[str, Any] = {"base_offset": entry.base_offset, "end_offset": entry.end_offset}
            if isinstance(entry, UnreadablePage):
                rows.append({**row, "error": entry.error})
            else:
                rows.append({**row, "bytes": entry.log_bytes, "uuid": str(entry.uuid)})
            if len(rows) == SEGMENTS_PER_REQUEST:
                break
    return rows


async def _verify(serving: Serving, partition: TopicIdPartition, wanted: VerifyRequest) -> dict[str, Any]:
    """Verify a piece of a segment.

    In the result, `position` says where to continue; null at the end, or if the rest cannot be checked.
    `errors`: damage that was found. Raises ObjectNotFound if the newest manifest does not list the segment,
    or STORE_FAILURES.
    """
    verifier, position, errors = serving.remote.verifier, wanted.position, []
    until_s = asyncio.get_running_loop().time() + VERIFY_S_PER_REQUEST
    try:
        entry = await verifier.listed(partition, wanted.base_offset, wanted.uuid)
        if not 0 <= position < entry.log_bytes:
            message = f"position {position} is not within 0 to {entry.log_bytes - 1}"
            raise http_error(web.HTTPBadRequest, message)
        verifier.recheck_now(partition, entry)
        if position == 0:
            await verifier.check_objects(partition, entry)
            await verifier.check_index(partition, entry)
        until = min(entry.log_bytes, position + VERIFY_BYTES_PER_REQUEST)
        while position < until:
            chunk = await verifier.chunk_at(partition, entry, position)
            try:
                await verifier.check_chunk(partition, entry, position)
            except CorruptObject as damage:
                errors.append(str(damage))
            position = chunk.end
            if asyncio.get_running_loop().time() >= until_s:
                break
    except (ObjectNotFound, *STORE_FAILURES):
        raise
    except (ObjectStoreError, OSError) as failure:  # the rest of the segment cannot be checked
        return {"position": None, "errors": [*errors, str(failure)]}
    return {"position": None if position == entry.log_bytes else position, "errors": errors}


async def _check_roots(serving: Serving, image: ClusterImage, wanted: RootsRequest) -> dict[str, Any]:
    """Check the manifest roots of partitions that this broker leads, for VERIFY_S_PER_REQUEST.

    In the result, `next` says after which partition to continue; null at the end. Raises STORE_FAILURES.
    """
    node_id = serving.bucket_scrubber.node_id
    led = sorted(
        where
        for where in image.remote
        if (topic := image.topics.get(where.topic_id)) is not None
        and topic.partitions[where.partition].leader == node_id
        and wanted.topic in (None, topic.name)
        and (wanted.after is None or where > TopicIdPartition(*wanted.after))
    )
    until_s = asyncio.get_running_loop().time() + VERIFY_S_PER_REQUEST
    faults: list[dict[str, Any]] = []
    checked = 0
    while checked < len(led):
        some = led[checked : checked + ROOTS_PER_TURN]
        rows = await asyncio.gather(*(_check_root(serving, image, where) for where in some))
        faults += [row for row in rows if row is not None]
        checked += len(some)
        if asyncio.get_running_loop().time() >= until_s:
            break
    following = None if checked == len(led) else [str(led[checked - 1].topic_id), led[checked - 1].partition]
    return {"checked": checked, "faults": faults, "next": following}


async def _check_root(
    serving: Serving, image: ClusterImage, where: TopicIdPartition
) -> dict[str, Any] | None:
    """A row about a fault, or about a root that the store refuses. Raises STORE_FAILURES."""
    try:
        fault = await serving.manifest_check.root(where)
    except (*STORE_FAILURES, MetadataUnavailable):
        raise
    except ObjectStoreError as failure:
        row = {"object": serving.remote.keys.root(where), "fault": str(failure)}
    else:
        if fault is None:
            return None
        row = _fault_row(fault)
    return {"topic": image.topics[where.topic_id].name, "partition": where.partition, **row}


def _fault_row(fault: ManifestFault) -> dict[str, Any]:
    return {"object": fault.object, "fault": fault.fault}


def _find_partition(image: ClusterImage, topic: str, partition: int) -> TopicIdPartition:
    found = image.topic(topic)
    if found is None or not 0 <= partition < len(found.partitions):
        raise http_error(web.HTTPNotFound, f"there is no partition {topic}-{partition}")
    return TopicIdPartition(found.topic_id, partition)


async def _no_throttle(objects: int) -> None:
    return


@contextmanager
def _store_errors_as_http() -> Iterator[None]:
    with tier_errors_as_http():
        try:
            yield
        except ObjectNotFound as gone:
            raise http_error(web.HTTPNotFound, str(gone)) from None
