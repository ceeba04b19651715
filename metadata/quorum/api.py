"""The quorum's HTTP routes on the node's admin server: Raft messages, forwarded commands, status.

The wire version is the number in the path, so it is signed. A request may announce the versions of its sender
in its query, and the response then has those of this node (`versions`, ADR 0050). Nodes before 0.1.0 do
neither.

A request is read only up to a bound, and processed only if it is signed, of this cluster and for this node.
Responses to such requests are signed too; rejections of unauthenticated requests are not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import msgspec
import structlog
from aiohttp import web

from tierlog.metadata.controller.commands import Heartbeat, decode_command, encode_reply
from tierlog.metadata.member_address import InvalidMemberUrl, check_resolved, check_url
from tierlog.metadata.quorum.auth import (
    INDEX,
    MAX_BODY_BYTES,
    RESPONSE_SIGNATURE,
    SENDER,
    SIGNATURE,
    VERSIONS,
    Envelope,
    Unauthenticated,
    sign_response,
)
from tierlog.metadata.quorum.log_pages import encode_page
from tierlog.metadata.quorum.membership import Membership
from tierlog.metadata.quorum.node import MetadataNode
from tierlog.metadata.quorum.observer import MetadataObserver
from tierlog.metadata.quorum.peers import (
    HEARTBEAT_SERVED_S,
    IncompatibleNode,
    MetadataUnavailable,
    NotTheLeader,
)
from tierlog.metadata.quorum.sentinel import ProcessEndNotice
from tierlog.metadata.quorum.status import NodeStatus
from tierlog.metadata.raft.membership import ChangeRefused
from tierlog.metadata.raft.messages import decode_messages, encode_messages
from tierlog.metadata.versions import WIRE_VERSIONS, own_versions, spans

T = TypeVar("T")
_Serve = Callable[[web.Request, Envelope, bytes], Awaitable[web.Response]]
_Authenticating = Callable[[_Serve], Callable[[web.Request], Awaitable[web.Response]]]

STEP_PATH = "/raft/v1/step"
SUBMIT_PATH = "/raft/v1/submit"
STATUS_PATH = "/raft/v1/status"
HEARTBEAT_PATH = "/metadata/v1/heartbeat"
END_PATH = "/metadata/v1/end"
LOG_PATH = "/metadata/v1/log"
SNAPSHOT_PATH = "/metadata/v1/snapshot"
"""Paths in wire version 1; `at_version` has those of others."""
UNKNOWN_VERSIONS = ("/raft/v{version}/{request}", "/metadata/v{version}/{request}")
UNKNOWN_VERSION_STATUS = 505
QUORUM_PATH = "/v1/quorum"
UNREADABLE_STATUS = 400
LOGGED_MAX = 100
"""Unknown wire versions that are logged: requests of them are not authenticated."""
BODY_TIMEOUT_S = 10.0
"""Longer than members wait (transport.STEP_TIMEOUT_S). A sender is unknown until its whole body is read."""
BODIES_OF_ADDRESS_MAX_BYTES = 4 * MAX_BODY_BYTES
BODIES_MAX_BYTES = 16 * MAX_BODY_BYTES
"""Bytes of large bodies that are being received, by the sender's address, and in all from addresses that have
sent no authenticated request yet. Each sender may be a stranger that wants to use up the memory. Connections
with an authenticated request have a budget of their own for each address: a stranger at a node's address
cannot use it up."""
SMALL_BODY_BYTES = 256 << 10
"""Bodies up to this size need no budget: heartbeats and votes pass also while strangers announce large bodies
that they never send."""


class NewVoter(msgspec.Struct, frozen=True):
    id: int
    url: str


class Unavailable(msgspec.Struct, frozen=True):
    """Body of a 503 to a forwarded command."""

    message: str
    applied_unknown: bool


class _Receiving:
    """Bytes of the large bodies that are being received. Their senders are not authenticated yet."""

    def __init__(self) -> None:
        self._bytes: dict[tuple[str, bool], int] = {}  # by address, and whether the connection is a node's
        self._addresses: set[str] = set()  # addresses and connections that sent an authenticated request
        self._connections: set[asyncio.BaseTransport] = set()

    def authenticated(self, request: web.Request) -> None:
        self._addresses.add(request.remote or "")
        if request.transport is not None and request.transport not in self._connections:
            open_ones = {one for one in self._connections if not one.is_closing()}
            self._connections = open_ones | {request.transport}

    @contextmanager
    def reserved(self, request: web.Request, length: int) -> Iterator[None]:
        """Raises HTTPServiceUnavailable if others are in the way of a large body."""
        if length <= SMALL_BODY_BYTES:
            yield
            return
        address = request.remote or ""
        sender = (address, request.transport in self._connections)
        of_sender = self._bytes.get(sender, 0)
        of_strangers = sum(count for (one, _), count in self._bytes.items() if one not in self._addresses)
        is_over = address not in self._addresses and of_strangers + length > BODIES_MAX_BYTES
        if is_over or of_sender + length > BODIES_OF_ADDRESS_MAX_BYTES:
            raise web.HTTPServiceUnavailable(text="too many requests are being received")
        self._bytes[sender] = of_sender + length
        try:
            yield
        finally:
            self._bytes[sender] -= length
            if not self._bytes[sender]:
                del self._bytes[sender]


class _UnreadableBody(Exception):
    """The body of a request is damaged, or a newer tierlog sent it."""


_log = structlog.get_logger("tierlog.metadata")
_notices = msgspec.msgpack.Decoder(ProcessEndNotice)
_heartbeats = msgspec.msgpack.Decoder(Heartbeat)
_new_voters = msgspec.json.Decoder(NewVoter)


def at_version(path: str, version: int) -> str:
    """The path of a request between nodes in this wire version."""
    return path.replace("/v1/", f"/v{version}/", 1)


def raft_routes(node: MetadataNode, secret: bytes) -> list[web.RouteDef]:
    """The requests between nodes, in each wire version that this node supports. Others are refused."""
    authenticating = partial(_authenticating, node, secret, _Receiving())
    refuse = _refuse_version(node)
    routes = [*_member_routes(node, secret, authenticating), *_broker_routes(node, secret, authenticating)]
    return [
        *(
            web.route(one.method, at_version(one.path, version), one.handler)
            for version in range(WIRE_VERSIONS[0], WIRE_VERSIONS[1] + 1)
            for one in routes
        ),
        *(web.route(method, path, refuse) for path in UNKNOWN_VERSIONS for method in ("GET", "POST")),
    ]


def _refuse_version(node: MetadataNode) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Refuses requests of wire versions that this node does not know, and logs each version once. The
    response is not signed, since this node does not know how a request of that version is signed."""
    logged: set[str] = set()

    async def refuse(request: web.Request) -> web.Response:
        version = request.match_info["version"]
        own = own_versions()
        here = f"node {node.node_id} (tierlog {own.build})"
        if version in map(str, range(own.wire[0], own.wire[1] + 1)):
            return web.Response(status=404, text=f"{here} has no such request in wire version {version}")
        why = f"{here} speaks wire version {spans(own.wire)}, not {version[:20]}"
        if version not in logged and len(logged) < LOGGED_MAX:
            logged.add(version)
            _log.error("quorum.version.refused", sender=request.headers.get(SENDER), why=why)
        return web.Response(status=UNKNOWN_VERSION_STATUS, text=why, headers={VERSIONS: own.announcement()})

    return refuse


def _member_routes(node: MetadataNode, secret: bytes, authenticating: _Authenticating) -> list[web.RouteDef]:
    async def step(request: web.Request, envelope: Envelope, body: bytes) -> web.Response:
        messages = _decoded(decode_messages, body)
        if any(message.sender != envelope.sender for message in messages):
            raise web.HTTPForbidden(text="the sender of a message is not the node that signed the request")
        node.receive(messages)
        replies = await node.replies_for(envelope.sender) if envelope.nonce else ()
        return (
            _signed(secret, request, encode_messages(replies))
            if replies
            else _signed(secret, request, b"", 204)
        )

    async def submit(request: web.Request, _: Envelope, body: bytes) -> web.Response:
        reply = await node.submit(_decoded(decode_command, body), forward=False)
        return _signed(secret, request, encode_reply(reply), index=str(node.image.index))

    async def status(request: web.Request, _: Envelope, __: bytes) -> web.Response:
        return _signed(secret, request, msgspec.json.encode(node.status()))

    return [
        web.post(STEP_PATH, authenticating(step)),
        web.post(SUBMIT_PATH, authenticating(submit)),
        web.get(STATUS_PATH, authenticating(status)),
    ]


def _broker_routes(node: MetadataNode, secret: bytes, authenticating: _Authenticating) -> list[web.RouteDef]:
    """For brokers, controllers or not: heartbeats, notices of ended processes, and the committed log."""

    async def heartbeat(request: web.Request, _: Envelope, body: bytes) -> web.Response:
        beat = _decoded(_heartbeats.decode, body)
        reply = await node.heartbeat(beat, HEARTBEAT_SERVED_S, forward=False)
        return _signed(secret, request, msgspec.msgpack.encode(reply))

    async def end(_: web.Request, envelope: Envelope, body: bytes) -> web.Response:
        """Signed by the process that has ended, and sent by its sentinel, which retries."""
        notice = _decoded(_notices.decode, body)
        if notice.broker_id != envelope.sender:
            raise web.HTTPForbidden(text="the notice is about another node than the one that signed it")
        node.process_ended(notice.broker_id, notice.broker_epoch)
        return web.Response(status=204)

    async def log(request: web.Request, _: Envelope, __: bytes) -> web.Response:
        page = await node.log_page(_number(request, "after"), _number(request, "wait_ms"))
        return _signed(secret, request, encode_page(page))

    async def snapshot(request: web.Request, _: Envelope, __: bytes) -> web.Response:
        chunk = node.snapshot_chunk(_number(request, "index"), _number(request, "offset"))
        if chunk is None:
            raise MetadataUnavailable("a newer snapshot has replaced this one", applied_unknown=False)
        return _signed(secret, request, chunk)

    return [
        web.post(HEARTBEAT_PATH, authenticating(heartbeat)),
        web.post(END_PATH, authenticating(end)),
        web.get(LOG_PATH, authenticating(log)),
        web.get(SNAPSHOT_PATH, authenticating(snapshot)),
    ]


def _authenticating(
    node: MetadataNode, secret: bytes, receiving: _Receiving, serve: _Serve
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        with receiving.reserved(request, _length_of(request)):
            envelope, body = await _authenticated(node, secret, request)
        receiving.authenticated(request)
        try:
            return await serve(request, envelope, body)
        except _UnreadableBody as unreadable:
            why = (
                f"node {node.node_id} (tierlog {own_versions().build}) cannot read the request: {unreadable}"
            )
            node.on_unreadable_request(envelope.sender, why)
            return _signed(secret, request, _error_body(IncompatibleNode(why)), UNREADABLE_STATUS)
        except MetadataUnavailable as unavailable:
            return _signed(secret, request, _error_body(unavailable), 503)

    return handle


def quorum_routes(node: MetadataNode | MetadataObserver) -> list[web.RouteDef]:
    """For operators: GET /v1/quorum, POST /v1/quorum/voters {"id", "url"}, DELETE /v1/quorum/voters/ID.
    Changes are redirected to the leader (307)."""

    async def status(_: web.Request) -> web.Response:
        return _status(node)

    async def add(request: web.Request) -> web.Response:
        try:
            voter = _decoded(_new_voters.decode, await request.read())
        except _UnreadableBody as failure:
            raise web.HTTPBadRequest(text=str(failure)) from None
        try:
            check_url(voter.url, member_urls(node))
            await check_resolved(voter.url)
        except InvalidMemberUrl as refused:
            raise web.HTTPBadRequest(text=str(refused)) from None
        return await _change_voters(node, request, lambda members: members.add_voter(voter.id, voter.url))

    async def remove(request: web.Request) -> web.Response:
        try:
            node_id = int(request.match_info["id"])
        except ValueError:
            raise web.HTTPBadRequest(text="the id of a voter has to be a number") from None
        return await _change_voters(node, request, lambda members: members.remove_voter(node_id))

    return [
        web.get(QUORUM_PATH, status),
        web.post(QUORUM_PATH + "/voters", add),
        web.delete(QUORUM_PATH + "/voters/{id}", remove),
    ]


def member_urls(node: MetadataNode | MetadataObserver) -> list[str]:
    """URLs of the voters and learners that this node knows."""
    if not node.started:
        return []
    status = node.status()
    learners = status.learners if isinstance(status, NodeStatus) else {}
    return [*status.voters.values(), *learners.values()]


async def _change_voters(
    node: MetadataNode | MetadataObserver,
    request: web.Request,
    change: Callable[[Membership], Awaitable[None]],
) -> web.Response:
    try:
        await change(node.membership)
    except NotTheLeader as not_leader:
        if not not_leader.url:
            return web.Response(status=503, body=_error_body(not_leader))
        raise web.HTTPTemporaryRedirect(not_leader.url + request.path_qs) from None
    except ChangeRefused as refused:
        raise web.HTTPConflict(text=str(refused)) from None
    except MetadataUnavailable as unavailable:
        return web.Response(status=503, body=_error_body(unavailable))
    return _status(node)


async def _authenticated(node: MetadataNode, secret: bytes, request: web.Request) -> tuple[Envelope, bytes]:
    body = await _body_of(request)
    if not node.started:
        raise web.HTTPServiceUnavailable(text="the metadata node is starting")
    try:
        envelope = Envelope.verify(request.headers, secret, request.path_qs, body)
    except Unauthenticated as refused:
        raise web.HTTPUnauthorized(text=str(refused)) from None
    if envelope.cluster_id != node.cluster_id:
        raise web.HTTPForbidden(text=f"this node belongs to cluster {node.cluster_id}")
    if envelope.receiver != node.node_id or envelope.receiver_directory not in (None, node.directory_id):
        raise web.HTTPForbidden(text=f"this is node {node.node_id} with directory {node.directory_id}")
    if not node.membership.admits(envelope.sender, envelope.directory):
        raise web.HTTPForbidden(text=f"node {envelope.sender} is known by another directory id")
    return envelope, body


def _length_of(request: web.Request) -> int:
    """A body that is too long is rejected by its Content-Length, before any of it is read."""
    if not request.body_exists:
        return 0
    length = request.content_length
    if length is None:
        raise web.HTTPLengthRequired()
    if length > MAX_BODY_BYTES:
        raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, length)
    return length


async def _body_of(request: web.Request) -> bytes:
    length = _length_of(request)
    if not length:
        return b""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.content.readexactly(length)
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body did not arrive in {BODY_TIMEOUT_S:.0f} s") from None
    except asyncio.IncompleteReadError:
        raise web.HTTPBadRequest(text="the body is incomplete") from None


def _status(node: MetadataNode | MetadataObserver) -> web.Response:
    if not node.started:
        raise web.HTTPServiceUnavailable(text="the metadata node is starting")
    return web.Response(body=msgspec.json.encode(node.status()), content_type="application/json")


def _error_body(unavailable: MetadataUnavailable) -> bytes:
    return msgspec.json.encode(Unavailable(str(unavailable), unavailable.applied_unknown))


def _signed(
    secret: bytes, request: web.Request, body: bytes, status: int = 200, *, index: str = ""
) -> web.Response:
    """A response to an authenticated request. It announces this node's versions if the request does so."""
    versions = own_versions().announcement() if "wire" in request.query else ""
    signature = sign_response(secret, request.headers[SIGNATURE], status, index, body, versions)
    headers = {
        RESPONSE_SIGNATURE: signature,
        **({INDEX: index} if index else {}),
        **({VERSIONS: versions} if versions else {}),
    }
    return web.Response(status=status, body=body, headers=headers)


def _number(request: web.Request, name: str) -> int:
    try:
        number = int(request.query[name])
    except (KeyError, ValueError):
        raise web.HTTPBadRequest(text=f"{name} has to be a number") from None
    if number < 0:
        raise web.HTTPBadRequest(text=f"{name} must not be negative")
    return number


def _decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except msgspec.DecodeError as failure:
        raise _UnreadableBody(str(failure)) from None
