"""Request meter: the quotas of one request's client (KIP-13, KIP-124, KIP-219).

The response carries the throttle time, and the connection is muted for that time. Built by `net.throttling`
for each request while quotas are set, called by `handlers.chain`.
"""

from collections.abc import Callable
from typing import Any

from tierlog.base.clock import Clock
from tierlog.broker.handlers.context import CLOSE, Connection, RawReply, Reply, RequestContext
from tierlog.broker.quotas.limits import account_name
from tierlog.broker.quotas.quotas import ClientQuotas
from tierlog.metadata.records import QuotaKey
from tierlog.protocol.api import APIS, FETCH_KEY, PRODUCE_KEY
from tierlog.protocol.messages.fetch import FetchRequest
from tierlog.protocol.messages.produce import ProduceRequest

MuteConnection = Callable[[Connection, int], None]
"""Mutes the connection for the given number of milliseconds."""


class RequestMeter:
    """Charges one request to its client's quotas."""

    __slots__ = (
        "_client_id", "_clock", "_context", "_gets_response", "_is_replica", "_mute", "_produced",
        "_quotas", "_request_is_charged", "_user",
    )  # fmt: skip

    def __init__(
        self, quotas: ClientQuotas, clock: Clock, mute: MuteConnection, context: RequestContext, request: Any
    ) -> None:
        self._quotas = quotas
        self._clock = clock
        self._mute = mute
        self._context = context
        connection = context.connection
        self._user = connection.user
        self._client_id = connection.client_id = account_name(context.client_id or "")
        self._gets_response = True
        self._request_is_charged = False  # to the request_percentage quota
        self._is_replica = False
        self._produced = 0
        if context.api == PRODUCE_KEY:
            self._produced = _size(request)
            self._gets_response = request.acks != 0
        elif context.api == FETCH_KEY:
            self._is_replica = max(request.replica_id, request.replica_state.replica_id) >= 0
            if not self._is_replica:
                self._limit_fetch_size(request)

    def charge_fetch(self, size: int) -> int:
        """Charge a Fetch response of `size` bytes. Returns the throttle time in milliseconds, or 0.

        If the quota is exceeded, the client gets an empty response and `size` is not counted.
        """
        self._request_is_charged = True
        throttle_ms = self._charge(QuotaKey.REQUEST_PERCENTAGE, 0.0)
        if throttle_ms:
            return throttle_ms
        now_ms = self._clock.monotonic_ms()
        key = QuotaKey.CONSUMER_BYTE_RATE
        return self._quotas.charge_unless_over(key, self._user, self._client_id, size, now_ms)

    def on_reply(self, reply: Reply) -> None:
        """Mute the connection for the throttle time of its quotas, or for the handler's if that is longer."""
        if self._is_replica:
            return  # exempt: Fetch has verified that the client is a broker of this cluster
        own_ms = _encoded_throttle_time(reply, self._context) if isinstance(reply, RawReply) else None
        throttle_ms = max(self._charge_request(), own_ms or getattr(reply, "throttle_time_ms", 0))
        if not throttle_ms or reply is CLOSE:
            return
        if isinstance(reply, RawReply):
            if own_ms is not None:
                _write_throttle_time(reply, throttle_ms)
        elif reply is not None and hasattr(reply, "throttle_time_ms"):
            reply.throttle_time_ms = throttle_ms
        self._mute(self._context.connection, throttle_ms)

    def on_error(self) -> None:
        """Mute the connection after an error response, which carries no throttle time."""
        throttle_ms = self._charge_request()
        if throttle_ms:
            self._mute(self._context.connection, throttle_ms)

    def _charge_request(self) -> int:
        throttle_ms = 0
        if self._produced:
            throttle_ms = self._charge(QuotaKey.PRODUCER_BYTE_RATE, self._produced)
        if self._gets_response and not self._request_is_charged:  # with acks=0 only bytes count, as in Kafka
            throttle_ms = max(throttle_ms, self._charge(QuotaKey.REQUEST_PERCENTAGE, 0.0))
        return throttle_ms

    def _charge(self, key: QuotaKey, amount: float) -> int:
        now_ms = self._clock.monotonic_ms()
        return self._quotas.charge(key, self._user, self._client_id, amount, now_ms)

    def _limit_fetch_size(self, request: FetchRequest) -> None:
        """Limit the response to the quota's burst: a larger one would be discarded."""
        max_burst = self._quotas.max_burst(QuotaKey.CONSUMER_BYTE_RATE, self._user, self._client_id)
        if max_burst is not None:
            request.max_bytes = min(request.max_bytes, max_burst)
            request.min_bytes = min(request.min_bytes, max_burst)


def _encoded_throttle_time(reply: RawReply, context: RequestContext) -> int | None:
    """The throttle time with which an encoded response begins; None if this response has none."""
    first, encoded = APIS[context.api].response.FIELDS[0], reply.parts[0]
    if first.name != "throttle_time_ms" or not first.exists_in(context.version):
        return None
    return int.from_bytes(encoded[:4], "big") if isinstance(encoded, bytes) else None


def _write_throttle_time(reply: RawReply, throttle_ms: int) -> None:
    encoded = reply.parts[0]
    if isinstance(encoded, bytes):
        reply.parts[0] = throttle_ms.to_bytes(4, "big") + encoded[4:]


def _size(request: ProduceRequest) -> int:
    """Bytes of the record batches; Kafka counts the whole request."""
    return sum(len(data.records or b"") for topic in request.topic_data for data in topic.partition_data)
