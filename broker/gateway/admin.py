"""The admin HTTP server: health, metrics, the cluster, its events, the tiers. JSON, for operators and tools.

It starts before the metadata node, whose peers talk to it, and answers 503 to what is not there yet.
"""

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from tierlog.broker.handlers.stats import RequestStats
from tierlog.broker.net.listener import Listener
from tierlog.broker.runtime.replica_manager import ReplicaManager
from tierlog.broker.settings.node import NodeSettings
from tierlog.metadata.client import MetadataClient
from tierlog.metadata.image import ClusterImage

EVENTS_WAITING = 1000
"""Events kept for one slow reader of /v1/events; beyond, it is cut off and has to look anew."""

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Node:
    """What the routes show. The composition root fills it in as the parts come to life."""

    def __init__(self, settings: NodeSettings, metadata: MetadataClient, stats: RequestStats) -> None:
        self.settings = settings
        self.metadata = metadata
        self.stats = stats
        self.replicas: ReplicaManager | None = None
        self.listener: Listener | None = None

    def serve(self, replicas: ReplicaManager, listener: Listener) -> None:
        self.replicas, self.listener = replicas, listener

    def stop_serving(self) -> None:
        self.replicas = self.listener = None

    @property
    def serves(self) -> bool:
        return self.listener is not None


class AdminServer:
    """The HTTP server of a node."""

    def __init__(self, routes: Sequence[web.AbstractRouteDef]) -> None:
        application = web.Application()
        application.add_routes(routes)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)

    async def start(self, host: str, port: int) -> str:
        """Serves; returns the URL that others reach it by."""
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, reuse_port=False
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listening).start()
        host, port = listening.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def close(self) -> None:
        await self._runner.cleanup()


def admin_routes(node: Node) -> list[web.AbstractRouteDef]:
    async def health(_: web.Request) -> web.Response:
        state = "serving" if node.serves else "starting"
        return web.json_response({"status": state}, status=200 if node.serves else 503)

    async def cluster(_: web.Request) -> web.Response:
        return web.json_response(cluster_view(node.metadata.image, node.settings.node_id))

    async def metrics(_: web.Request) -> web.Response:
        from tierlog.broker.gateway.metrics import render  # prometheus_client loads when first asked for

        return web.Response(body=render(node), headers={"Content-Type": METRICS_TYPE})

    async def events(request: web.Request) -> web.StreamResponse:
        return await _stream(request, node.metadata)

    return [
        web.get("/health", health),
        web.get("/metrics", metrics),
        web.get("/v1/cluster", cluster),
        web.get("/v1/events", events),
    ]


def cluster_view(image: ClusterImage, node_id: int) -> dict[str, Any]:
    """The cluster as JSON: brokers, topics, partitions."""
    return {
        "cluster_id": image.cluster_id,
        "node_id": node_id,
        "image_index": image.index,
        "brokers": [
            {
                "id": broker.broker_id,
                "host": broker.host,
                "port": broker.port,
                "admin_url": broker.admin_url,
                "rack": broker.rack,
                "fenced": broker.fenced,
            }
            for _, broker in sorted(image.brokers.items())
        ],
        "topics": [
            {
                "name": topic.name,
                "id": str(topic.topic_id),
                "configs": dict(sorted(image.topic_overrides(topic.name).items())),
                "partitions": [
                    {
                        "partition": number,
                        "leader": partition.leader,
                        "leader_epoch": partition.leader_epoch,
                        "replicas": list(partition.replicas),
                        "in_sync": list(partition.in_sync),
                    }
                    for number, partition in enumerate(topic.partitions)
                ],
            }
            for topic in sorted(image.topics.values(), key=lambda topic: topic.name)
        ],
    }


async def _stream(request: web.Request, metadata: MetadataClient) -> web.StreamResponse:
    """Server-sent events: one per committed change, so that a client waits instead of polling."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(EVENTS_WAITING)

    def note(old: ClusterImage, new: ClusterImage) -> None:
        if queue.full():
            return
        queue.put_nowait(_event(old, new) if queue.qsize() < EVENTS_WAITING - 1 else None)

    unsubscribe = metadata.subscribe(note)
    try:
        await _send(response, {"image_index": metadata.image.index, "changed": []})
        while (event := await queue.get()) is not None:
            await _send(response, event)
    except ConnectionError:
        pass  # the client went away
    finally:
        unsubscribe()
    return response


def _event(old: ClusterImage, new: ClusterImage) -> dict[str, Any]:
    parts = ("brokers", "topics", "configs", "remote", "delete_queue")
    changed = [part for part in parts if getattr(old, part) is not getattr(new, part)]
    event: dict[str, Any] = {"image_index": new.index, "changed": changed}
    if "remote" in changed:
        event["partitions"] = [
            {"topic": topic.name, "partition": key.partition}
            for key, remote in new.remote.items()
            if old.remote.get(key) is not remote and (topic := new.topics.get(key.topic_id)) is not None
        ]
    return event


async def _send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(f"id: {event['image_index']}\ndata: {json.dumps(event)}\n\n".encode())
