"""Network port of clients and brokers: connections over the simulated network."""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from simulator.network import Broken, Network, Refused
from tierlog.base.network import Peer, Unreachable
from tierlog.protocol import replica_fetch
from tierlog.protocol.api import APIS, FETCH_KEY, decode_response, encode_request
from tierlog.protocol.messages.fetch import FetchRequest

GUEST = "guest-"
"""The beginning of the names of clients that are no super user. A broker takes their client id for their
principal."""


class Server(Protocol):
    name: str

    async def serve(self, frame: bytes) -> bytes:
        """The response to a request frame. Raises Broken where a broker would close the connection."""
        ...


class SimDialler:
    """The network port of one end."""

    def __init__(
        self, network: Network, name: str, brokers: Mapping[int, Server], rng: random.Random
    ) -> None:
        self._network, self._name, self._brokers, self._rng = network, name, brokers, rng

    async def connect(self, peer: Peer, client_id: str) -> "SimCaller":
        return await self.connect_to(peer.host)

    async def connect_to(self, host: str) -> "SimCaller":
        connection = self._rng.getrandbits(48)

        async def accept() -> None:
            return

        try:
            await self._network.call(self._name, host, connection, accept)
        except ConnectionError as failure:
            raise Unreachable(str(failure)) from None
        broker = next(one for one in self._brokers.values() if one.name == host)
        return SimCaller(self._network, self._name, broker, connection)


class SimCaller:
    def __init__(self, network: Network, name: str, broker: Server, connection: int) -> None:
        self._network, self._name, self._broker, self._connection = network, name, broker, connection
        self._client_id = name if name.startswith(GUEST) else "simulated"
        self._pending: asyncio.Future[bytes] | None = None
        self.is_open = True

    async def call(
        self,
        api_key: int,
        version: int,
        request: Any,
        timeout_s: float,
        follow_up: Callable[[Any], Any] | None = None,
    ) -> Any:
        while True:
            response = await self._call(api_key, version, request, timeout_s)
            request = None if follow_up is None else follow_up(response)
            if request is None:
                return response

    async def _call(self, api_key: int, version: int, request: Any, timeout_s: float) -> Any:
        if not self.is_open:
            raise Unreachable("closed")
        api = APIS[api_key]
        is_replica_fetch = (api_key, version) == (FETCH_KEY, replica_fetch.VERSION)  # has its own codec
        if is_replica_fetch:
            frame = replica_fetch.encode_fetch_request(7, "simulated", request)
        else:
            frame = encode_request(api, version, 7, self._client_id, request)
        self._pending = self._network.call(
            self._name, self._broker.name, self._connection, lambda: self._broker.serve(frame)
        )
        deadline = asyncio.get_running_loop().call_later(timeout_s, self.close)
        try:
            answer = await self._pending
        except (Broken, Refused) as failure:
            self.is_open = False
            raise Unreachable(str(failure)) from None
        except (Unreachable, asyncio.CancelledError):
            self.is_open = False
            raise
        finally:
            deadline.cancel()
        if is_replica_fetch:
            response = replica_fetch.decode_fetch_response(memoryview(bytearray(answer)), 4, len(answer))[1]
        else:
            response = decode_response(api, version, bytearray(answer), 4, len(answer))[1]
        if isinstance(request, FetchRequest) and request.replica_state.replica_id >= 0:
            self._network.corrupt(part.records for topic in response.responses for part in topic.partitions)
        return response

    def close(self) -> None:
        self.is_open = False
        if self._pending is not None and not self._pending.done():
            self._pending.set_exception(Unreachable("closed, or no response in time"))
