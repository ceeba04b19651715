"""Fleet: requests to the admin APIs of all nodes, for pages that show more than this node knows.

This node's own documents come from the handlers of its routes. Another node gets the login of the user that
requests the page, and checks the role itself. The login leaves only over TLS or to this machine, as from the
command line. A node that does not respond within TIMEOUT_S is named, and the page is shown
without it.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import aiohttp
from aiohttp import hdrs, web
from yarl import URL

from tierlog.base.addresses import is_confidential
from tierlog.broker.diagnosis.evidence import (
    BROKERS,
    DIRECTORIES,
    HEALTH_PATHS,
    QUORUM,
    UNHEALTHY_PARTITIONS,
    Answers,
    Evidence,
)
from tierlog.broker.gateway.node import Node
from tierlog.metadata.member_address import MemberResolver
from tierlog.metadata.quorum.status import NodeStatus
from tierlog.metadata.quorum.tls import TlsFiles

TIMEOUT_S = 2.0
"""For each response of another node, the wait for its turn included."""

OWN_TIMEOUT_S = 15.0
"""For each of this node's own documents: one of 200,000 partitions takes seconds, and a disk may hang."""

NODES_MAX = 100
CONNECTIONS_PER_NODE = 2
"""There is no bound over all nodes: requests to nodes that hang would keep those to others waiting."""

RESPONSE_BYTES_MAX = 4 << 20
KEPT_S = 4.0
"""How long evidence is kept for further requests with the same login: less than between two refreshes."""

KEPT_MAX = 16
"""Logins for which evidence is kept."""

UNHEALTHY_MAX = 100
WHOLE_NODE = "node "
"""Beginning of the line about a node of which no document was read."""
NOTHING_THERE = (404, 409)
"""Statuses of a node that has no such group, or is not a broker."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Wanted = Sequence[tuple[int, str]]
"""Node and path with its query."""


class Fleet:
    def __init__(self, node: Node, handlers: Mapping[str, Handler], tls: TlsFiles | None) -> None:
        """`handlers`: this node's GET routes by path. `tls`: of the quorum."""
        self._node, self._handlers, self._tls = node, handlers, tls
        self._gathering = asyncio.Lock()
        self._kept: dict[bytes, tuple[float, Evidence]] = {}

    def urls(self) -> dict[int, str]:
        """URLs of all nodes that this one knows, at most NODES_MAX. Its own is empty."""
        metadata = self._node.metadata
        found = {broker.broker_id: broker.admin_url for broker in metadata.image.brokers.values()}
        if metadata.started:
            status = metadata.status()
            learners = status.learners if isinstance(status, NodeStatus) else {}
            found |= {one: url for one, url in {**status.voters, **learners}.items() if url}
        own = self._node.settings.node_id
        others = sorted(one for one in found if one != own)[: NODES_MAX - 1]
        return {own: "", **{one: found[one] for one in others}}

    async def evidence(self, request: web.Request) -> Evidence:
        """The documents of all nodes about their health."""
        login = sha256(request.headers.get(hdrs.AUTHORIZATION, "").encode()).digest()
        loop = asyncio.get_running_loop()
        async with self._gathering:
            kept = self._kept.get(login)
            if kept is not None and loop.time() < kept[0]:
                return kept[1]
            found = await self._gather(request)
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[login] = (loop.time() + KEPT_S, found)
            return found

    async def _gather(self, request: web.Request) -> Evidence:
        own, urls = self._node.settings.node_id, self.urls()
        paths = (QUORUM, *HEALTH_PATHS, DIRECTORIES)
        unhealthy = f"/v1/partitions?condition=unhealthy&limit={UNHEALTHY_MAX}"
        once = [(own, BROKERS), (own, unhealthy)]
        found = await self.ask(request, [*once, *((one, path) for one in urls for path in paths)])
        documents = {one: dict(some) for one, some in found.documents.items()}
        if QUORUM not in documents.get(own, {}):
            documents.pop(own, None)  # it is starting
        elif unhealthy in documents[own]:
            documents[own][UNHEALTHY_PARTITIONS] = documents[own].pop(unhealthy)
        answers = Answers(urls=found.urls, documents=documents, unread=found.unread)
        # nodes that do not respond at all are a finding of their own
        not_read = tuple(one for one in found.unread if not one.startswith(WHOLE_NODE))
        return Evidence(taken_at_ms=0, answers=answers, not_read=not_read)

    async def ask(self, request: web.Request, wanted: Wanted) -> Answers:
        """The responses as JSON. Paths that a node does not serve are missing; `unread` names the others."""
        urls, unread = self.urls(), list[_Failure]()
        documents: dict[int, dict[str, Any]] = {}
        resolver = MemberResolver()
        connector = aiohttp.TCPConnector(resolver=resolver, limit=0, limit_per_host=CONNECTIONS_PER_NODE)
        try:
            context = None if self._tls is None else self._tls.client()
        except OSError as failure:
            unread.append(_Failure(self._node.settings.node_id, "certificates", str(failure)))
            context = None
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

            async def read(node: int, path: str) -> None:
                try:
                    if node == self._node.settings.node_id:
                        found = await self._read_own(request, path)
                    else:
                        found = await _read(session, urls.get(node, ""), path, request, context)
                except _Unread as why:
                    if str(why):
                        unread.append(_Failure(node, path.partition("?")[0], str(why)))
                else:
                    documents.setdefault(node, {})[path] = found

            await asyncio.gather(*(read(node, path) for node, path in wanted))
        return Answers(urls=urls, documents=documents, unread=_lines(unread, documents.keys()))

    async def _read_own(self, request: web.Request, path: str) -> dict[str, Any]:
        handler = self._handlers.get(path.partition("?")[0])
        if handler is None:
            raise _Unread
        try:
            async with asyncio.timeout(OWN_TIMEOUT_S):
                response = await handler(request.clone(rel_url=URL(path, encoded=True)))
        except TimeoutError:
            raise _Unread(f"no response within {OWN_TIMEOUT_S:.0f} s") from None
        except web.HTTPException as refused:
            raise _Unread("" if refused.status in NOTHING_THERE else _message(refused.text or "")) from None
        text = response.body if isinstance(response, web.Response) else None
        return _document(text if isinstance(text, bytes) else b"")


class _Failure(NamedTuple):
    node: int
    path: str
    why: str


def _lines(failures: Sequence[_Failure], responding: Collection[int]) -> list[str]:
    """One line for each document that was not read, and one for a node of which none was."""
    lines = [
        f"{one.path} of node {one.node}: {one.why}"
        if one.node in responding
        else f"{WHOLE_NODE}{one.node}: {one.why}"
        for one in failures
    ]
    return list(dict.fromkeys(lines))


class _Unread(Exception):
    """A document was not read; the message says why, and is empty if nothing is wrong."""


async def _read(
    session: aiohttp.ClientSession,
    url: str,
    path: str,
    request: web.Request,
    context: ssl.SSLContext | None,
) -> dict[str, Any]:
    if not url:
        raise _Unread("it has registered no address of its admin API")
    headers = {}
    if (login := request.headers.get(hdrs.AUTHORIZATION)) is not None:
        if not is_confidential(url):
            raise _Unread("its address has no TLS, so it does not get your login: see its own page")
        headers[hdrs.AUTHORIZATION] = login
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            session.get(
                URL(url.rstrip("/") + path, encoded=True),
                headers=headers,
                ssl=True if context is None else context,
                allow_redirects=False,
            ) as response,
        ):
            body = await response.content.read(RESPONSE_BYTES_MAX + 1)
            while not response.content.at_eof() and len(body) <= RESPONSE_BYTES_MAX:
                body += await response.content.read(RESPONSE_BYTES_MAX + 1 - len(body))
            status = response.status
    except TimeoutError:
        raise _Unread(f"no response within {TIMEOUT_S:.0f} s") from None
    except aiohttp.ClientConnectorError as failure:
        raise _Unread(failure.os_error.strerror or str(failure.os_error)) from None
    except (aiohttp.ClientError, OSError, ValueError) as failure:
        raise _Unread(str(failure) or type(failure).__name__) from None
    if len(body) > RESPONSE_BYTES_MAX:
        raise _Unread("the response is too long")
    if status != 200:
        text = body.decode(errors="replace")
        raise _Unread("" if status in NOTHING_THERE else f"status {status}, {_message(text)}")
    return _document(body)


def _document(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _Unread("the response is not a JSON object")
    return found


def _message(text: str) -> str:
    try:
        found = json.loads(text)
        return str(found["error"])[:500]
    except (ValueError, KeyError, TypeError, RecursionError):
        return text[:500]


def get_handlers(routes: Iterable[web.AbstractRouteDef]) -> dict[str, Handler]:
    """Handlers of GET routes without parameters, by path."""
    return {
        route.path: route.handler
        for route in routes
        if isinstance(route, web.RouteDef) and route.method == hdrs.METH_GET and "{" not in route.path
    }
