"""Routes of the web page (ADR 0055).

A page reads the committed image and, for what other nodes know, the admin API of those nodes (`fleet`). It
changes nothing: its buttons send requests to the admin API, which checks their origin and the user's role.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from importlib.resources import files
from typing import Any

from aiohttp import hdrs, web

from tierlog.base import build
from tierlog.broker.diagnosis.evidence import Answers
from tierlog.broker.gateway.authentication import PRINCIPAL, ROLE
from tierlog.broker.gateway.node import Node
from tierlog.broker.gateway.roles import role_needed
from tierlog.broker.gateway.web import group_pages, layout, tiering_page, topic_pages
from tierlog.broker.gateway.web.cluster_page import cluster_page
from tierlog.broker.gateway.web.fleet import Fleet, get_handlers
from tierlog.broker.gateway.web.html import path_of
from tierlog.broker.gateway.web.layout import Frame, Page, error_page, page_number, respond
from tierlog.broker.gateway.web.quorum_page import quorum_page
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.quorum.tls import TlsFiles

LEADER_TIMEOUT_S = 2.0
NAME_MAX = 1_000
"""Characters of a name or search; longer ones match nothing."""

STATIC = {
    "app.css": "text/css",
    "app.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
Render = Callable[[web.Request], Awaitable[Page]]


def web_routes(
    node: Node, api: Iterable[web.AbstractRouteDef], tls: TlsFiles | None
) -> list[web.AbstractRouteDef]:
    """`api`: the routes of the admin API. `tls`: certificates by which nodes speak to each other."""
    pages = _Pages(node, Fleet(node, get_handlers(api), tls))
    routes: dict[str, Render] = {
        layout.CLUSTER: pages.cluster,
        layout.TOPICS: pages.topics,
        layout.TOPIC: pages.topic,
        layout.GROUPS: pages.groups,
        layout.GROUP: pages.group,
        layout.TIERING: pages.tiering,
        layout.QUORUM: pages.quorum,
    }
    return [
        *(web.get(path, partial(_answer, node, render)) for path, render in routes.items()),
        web.get("/ui/static/{file}", _static),
    ]


async def _answer(node: Node, render: Render, request: web.Request) -> web.Response:
    role = request.get(ROLE)
    frame = Frame(
        node_id=node.settings.node_id,
        cluster_id=node.metadata.cluster_id,
        version=build.VERSION,
        user=request.get(PRINCIPAL, ""),
        role="" if role is None else role.name.lower(),
    )
    if not node.metadata.started:
        return respond(request, error_page(503, "This node is still starting. Try again in a moment."), frame)
    return respond(request, await render(request), frame)


async def _static(request: web.Request) -> web.Response:
    name = request.match_info["file"]
    if name not in STATIC:
        raise web.HTTPNotFound(text="there is no such file")
    body = (files(__package__) / "static" / name).read_bytes()
    headers = {**layout.HEADERS, "Cache-Control": "no-cache"}
    return web.Response(body=body, content_type=STATIC[name], charset="utf-8", headers=headers)


def _may(request: web.Request, path: str) -> bool:
    """Whether the admin API will accept this change. Without admin.authentication it accepts all."""
    role = request.get(ROLE)
    return role is None or bool(role >= role_needed(hdrs.METH_POST, path))


class _Pages:
    def __init__(self, node: Node, fleet: Fleet) -> None:
        self._node, self._fleet = node, fleet
        self._metadata = node.metadata

    async def cluster(self, request: web.Request) -> Page:
        evidence = await self._fleet.evidence(request)
        return await asyncio.to_thread(cluster_page, evidence, partial(_may, request))

    async def topics(self, request: web.Request) -> Page:
        search = request.query.get("search", "").strip()
        unhealthy = request.query.get("show") == "unhealthy"
        page = page_number(request, 1_000_000)
        image = self._metadata.image
        found = await asyncio.to_thread(
            topic_pages.find_topics, image, search[:NAME_MAX], page, unhealthy=unhealthy
        )
        return topic_pages.topics_page(found, search, unhealthy=unhealthy)

    async def topic(self, request: web.Request) -> Page:
        name, image = request.query.get("name", ""), self._metadata.image
        topic = image.topic(name)
        if topic is None:
            return error_page(404, f"There is no topic {name[:NAME_MAX]!r}.", "Topics")
        pages = -(-len(topic.partitions) // topic_pages.PARTITIONS_PER_PAGE)
        page = page_number(request, pages)
        numbers = topic_pages.partitions_of_page(topic, page)
        path = path_of("/v1/offsets", topic=name, first=str(numbers.start), limit=len(numbers))
        leaders = {topic.partitions[number].leader for number in numbers} & set(self._fleet.urls())
        found = await self._fleet.ask(request, [(one, path) for one in sorted(leaders)])
        rows = [row for one in found.of(path).values() for row in one.get("partitions", ())]
        view = topic_pages.TopicView(
            topic=topic,
            first=numbers.start,
            page=page,
            pages=pages,
            offsets={int(row["partition"]): row for row in rows},
            unread=found.unread,
            may_elect=_may(request, "/v1/partitions/elect"),
        )
        return await asyncio.to_thread(topic_pages.topic_page, image, view)

    async def groups(self, request: web.Request) -> Page:
        search = request.query.get("search", "").strip()
        page = page_number(request, group_pages.PAGES_MAX)
        limit = page * group_pages.GROUPS_PER_PAGE
        found = await self._ask_brokers(request, path_of("/v1/groups", search=search[:NAME_MAX], limit=limit))
        return group_pages.groups_page(found, search, page)

    async def group(self, request: web.Request) -> Page:
        name = request.query.get("name", "")
        if not name:
            return error_page(404, "Name a group.", "Groups")
        path = path_of("/v1/groups", group=name)
        found = await self._ask_brokers(request, path)
        views = found.of(path)
        if not views:
            why = f" {found.unread[0]}" if found.unread else ""
            return error_page(404, f"No broker that responds coordinates the group {name[:NAME_MAX]!r}.{why}",
                              "Groups")  # fmt: skip
        coordinator, view = next(iter(sorted(views.items(), key=lambda item: item[1]["type"] is None)))
        return group_pages.group_page(name, view, coordinator)

    async def tiering(self, request: web.Request) -> Page:
        brokers = self._brokers()
        wanted = [(one, path) for one in brokers for path in tiering_page.PATHS]
        found = await self._fleet.ask(request, wanted)
        return tiering_page.tiering_page(found, self._node.settings.node_id, partial(_may, request))

    async def quorum(self, request: web.Request) -> Page:
        try:
            leader = await self._metadata.quorum(LEADER_TIMEOUT_S)
        except MetadataUnavailable:
            leader = None
        own = self._node.settings.node_id
        found = await self._fleet.ask(request, [(own, "/v1/versions")])
        versions: dict[str, Any] = found.of("/v1/versions").get(own, {})
        now_ms = self._node.clock.now_ms()
        return quorum_page(self._metadata.status(), leader, self._metadata.image, versions, now_ms)

    def _brokers(self) -> list[int]:
        """Brokers that the fleet reaches."""
        known, urls = self._metadata.image.brokers, self._fleet.urls()
        return [one for one in urls if one in known]

    async def _ask_brokers(self, request: web.Request, path: str) -> Answers:
        return await self._fleet.ask(request, [(one, path) for one in self._brokers()])
