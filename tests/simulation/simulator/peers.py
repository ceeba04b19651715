"""What a metadata node sees of the other voters, over the simulated network."""

from collections.abc import Callable

from simulator.network import Broken, Network, Refused
from tierlog.metadata.controller.commands import (
    AnyCommand,
    AnyReply,
    decode_command,
    decode_reply,
    encode_command,
    encode_reply,
)
from tierlog.metadata.node import MetadataNode, MetadataUnavailable
from tierlog.metadata.raft.messages import AnyMessage, decode_messages, encode_messages


def address(node_id: int) -> str:
    return f"node-{node_id}"


class SimPeers:
    """`nodes`: of the live process of each node its metadata node; it is another after a restart."""

    def __init__(self, network: Network, node_id: int, nodes: dict[int, MetadataNode]) -> None:
        self._network = network
        self._node_id = node_id
        self._nodes = nodes

    def start(self, unreachable: Callable[[int], None]) -> None:
        self._unreachable = unreachable

    def send(self, message: AnyMessage) -> None:
        """As bytes: what a message holds is not shared by the ends."""
        body = encode_messages((message,))

        def deliver() -> None:
            node = self._nodes.get(message.to)
            if node is not None:
                node.receive(decode_messages(body))

        self._network.post(address(self._node_id), address(message.to), deliver)

    async def submit(self, leader: int, command: AnyCommand) -> tuple[AnyReply, int]:
        body = encode_command(command)

        async def serve() -> tuple[bytes, int]:
            node = self._nodes[leader]
            reply = await node.submit(decode_command(body), forward=False)
            return encode_reply(reply), node.image.index

        try:
            answer, index = await self._network.call(address(self._node_id), address(leader), 0, serve)
        except Refused as failure:
            raise MetadataUnavailable(str(failure), applied_unknown=False) from None
        except Broken as failure:
            raise MetadataUnavailable(str(failure), applied_unknown=True) from None
        return decode_reply(answer), index

    async def close(self) -> None:
        return
