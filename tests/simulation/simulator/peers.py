"""The peers of a metadata node over the simulated network."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol, TypeVar

import msgspec

from simulator.network import Broken, Network, Refused
from simulator.witness import QuorumWitness
from tierlog.metadata.controller.commands import (
    AlterPartitions,
    AnyCommand,
    AnyReply,
    Heartbeat,
    HeartbeatReply,
    decode_command,
    decode_reply,
    encode_command,
    encode_reply,
)
from tierlog.metadata.quorum.log_pages import LogPage
from tierlog.metadata.quorum.node import MetadataNode
from tierlog.metadata.quorum.peers import HEARTBEAT_SERVED_S, LeadershipLost, MetadataUnavailable, Peers
from tierlog.metadata.raft.messages import AnyMessage, decode_messages, encode_messages

T = TypeVar("T")


def address(node_id: int) -> str:
    return f"node-{node_id}"


class HasMetadata(Protocol):
    """A node as others reach it. Each restart gives it a new metadata node."""

    @property
    def metadata(self) -> MetadataNode | None: ...


class SimPeers(Peers):
    """`nodes`: by node id; `metadata` is None while the node has no live process."""

    def __init__(
        self,
        network: Network,
        node_id: int,
        nodes: Mapping[int, HasMetadata],
        witness: QuorumWitness,
        name: str = "",
    ) -> None:
        """`name`: host of this node, if it is not `address(node_id)`."""
        self._network = network
        self._node_id, self._name = node_id, name or address(node_id)
        self._nodes = nodes
        self._witness = witness
        self._on_death: Callable[[int], None] = lambda peer: None
        self._on_messages: Callable[[tuple[AnyMessage, ...]], None] = lambda messages: None
        self._held: dict[int, list[AnyMessage]] = {}  # messages for peers whose request is being answered

    def start(
        self,
        on_unreachable: Callable[[int], None],
        on_death: Callable[[int], None],
        on_connected: Callable[[int], None],
        on_messages: Callable[[tuple[AnyMessage, ...]], None],
    ) -> None:
        self._on_death, self._on_messages = on_death, on_messages

    def report_death(self, peer: int) -> None:
        """The host, or a firewall before it, refuses connections. Report it if the network connects."""
        if self._network.connects(self._name, address(peer)):
            self._on_death(peer)

    def send(self, message: AnyMessage) -> None:
        """Encodes the message, so that both ends share no objects."""
        body = encode_messages((message,))
        self._witness.on_send(message)
        if message.to in self._held:
            self._held[message.to].append(message)
            return
        requester = self._nodes[self._node_id].metadata
        network = self._network

        def deliver() -> None:
            node = self._nodes[message.to].metadata
            if node is None:
                return
            if network.responses is not None and network.responses.draw():
                task = asyncio.get_running_loop().create_task(respond(node))
                task.add_done_callback(lambda task: task.cancelled() or task.result())  # report a failure
            else:
                receive(node)

        def receive(node: MetadataNode) -> None:
            self._witness.on_receive(message)
            node.receive(decode_messages(body))

        async def respond(node: MetadataNode) -> None:
            receive(node)
            if replies := await node.replies_for(self._node_id):
                back = lambda: self._on_response(requester, encode_messages(replies))  # noqa: E731
                network.post(address(message.to), address(self._node_id), back)

        network.post(address(self._node_id), address(message.to), deliver)

    def _on_response(self, requester: MetadataNode | None, body: bytes) -> None:
        """The connection ends with the process that sent the request, so its successor gets no response."""
        if requester is None or self._nodes[self._node_id].metadata is not requester:
            return
        messages = decode_messages(body)
        for message in messages:
            self._witness.on_receive(message)
        if self._network.responses is not None:
            self._network.responses.count_messages(len(messages))
        self._on_messages(messages)

    async def replies_for(self, peer: int) -> tuple[AnyMessage, ...]:
        """Yields to the node's loop once, as the real transport does."""
        self._held.setdefault(peer, [])
        await asyncio.sleep(0)
        return tuple(self._held.pop(peer, ()))

    async def submit(self, leader: int, command: AnyCommand) -> tuple[AnyReply, int]:
        body = encode_command(command)

        async def serve() -> tuple[bytes, int]:
            node = self._node(leader)
            reply = await node.submit(decode_command(body), forward=False)
            return encode_reply(reply), node.image.index

        if isinstance(command, AlterPartitions):
            self._maybe_retry_late(leader, serve)
        answer, index = await self._call(leader, serve)
        return decode_reply(answer), index

    async def heartbeat(self, leader: int, heartbeat: Heartbeat, timeout_s: float) -> HeartbeatReply:
        body = msgspec.msgpack.encode(heartbeat)

        async def serve() -> bytes:
            node = self._node(leader)
            request = msgspec.msgpack.decode(body, type=Heartbeat)
            return msgspec.msgpack.encode(await node.heartbeat(request, HEARTBEAT_SERVED_S, forward=False))

        self._maybe_retry_late(leader, serve)
        try:
            async with asyncio.timeout(timeout_s):
                return msgspec.msgpack.decode(await self._call(leader, serve), type=HeartbeatReply)
        except TimeoutError:
            raise MetadataUnavailable("no answer in time", applied_unknown=False) from None

    async def log_page(self, voter: int, after: int, wait_ms: int) -> LogPage:
        return await self._call(voter, lambda: self._node(voter).log_page(after, wait_ms))

    async def snapshot_chunk(self, voter: int, index: int, offset: int) -> bytes:
        async def serve() -> bytes | None:
            return self._node(voter).snapshot_chunk(index, offset)

        chunk = await self._call(voter, serve)
        if chunk is None:
            raise MetadataUnavailable("there is a newer snapshot", applied_unknown=False)
        return chunk

    def _node(self, node_id: int) -> MetadataNode:
        node = self._nodes[node_id].metadata
        if node is None:
            raise MetadataUnavailable(f"node {node_id} has not started", applied_unknown=False)
        return node

    async def _call(self, node_id: int, serve: Callable[[], Awaitable[T]]) -> T:
        network = self._network
        try:
            return await network.call(self._name, address(node_id), network.connection(), serve)
        except Refused as failure:
            raise MetadataUnavailable(str(failure), applied_unknown=False) from None
        except Broken as failure:
            raise MetadataUnavailable(str(failure), applied_unknown=True) from None

    def _maybe_retry_late(self, node_id: int, serve: Callable[[], Awaitable[T]]) -> None:
        """Sometimes a copy of a request that epochs fence arrives much later, as from a proxy's retry."""
        if self._network.is_retried_late():
            asyncio.get_running_loop().create_task(self._retry_late(node_id, serve))

    async def _retry_late(self, node_id: int, serve: Callable[[], Awaitable[T]]) -> None:
        await asyncio.sleep(self._network.late_retry_delay_s())
        with suppress(MetadataUnavailable, LeadershipLost, Refused, Broken, TimeoutError):
            network = self._network
            await network.call(self._name, address(node_id), network.connection(), serve)
