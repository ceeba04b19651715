"""Throttling: counts the use of clients with quotas and mutes clients over their quota.

Without quotas, requests are not metered and no time is measured. Built by the composition root; `follow` is
called with each new image. `handlers.meter` applies the quotas to one request; the quota on new connections
is KIP-612's.

`request_percentage` counts the time that the event loop spends on a connection: receiving, handling and
sending. Work in tasks and threads is not counted.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any

from tierlog.base.clock import Clock
from tierlog.broker.handlers.context import Connection, RequestContext
from tierlog.broker.handlers.meter import RequestMeter
from tierlog.broker.net.listener import Listener
from tierlog.broker.quotas.quotas import ClientQuotas
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import QuotaKey


class Throttling:
    """The quotas of a listener's clients. `timer`: a clock in seconds."""

    def __init__(
        self,
        listener: Listener,
        quotas: ClientQuotas,
        clock: Clock,
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        self._listener = listener
        self._quotas = quotas
        self._clock = clock
        self._timer = timer

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.quotas is new.quotas:
            return
        self._quotas.configure(new.quotas)
        self._listener.dispatcher.chain.quotas = self if new.quotas else None
        timed = self._quotas.has_quota(QuotaKey.REQUEST_PERCENTAGE)
        self._listener.set_stopwatch(self._stopwatch if timed else None)
        limited = self._quotas.has_quota(QuotaKey.CONNECTION_CREATION_RATE)
        self._listener.admission = self._admission if limited else None
        self._listener.unmute_all()  # a quota set too low by mistake may have muted them for an hour

    def begin(self, context: RequestContext, request: Any) -> RequestMeter:
        """The meter of a request; called by the chain."""
        return RequestMeter(self._quotas, self._clock, self._mute, context, request)

    def _mute(self, connection: Connection, throttle_ms: int) -> None:
        self._listener.mute(connection, throttle_ms / 1000)

    def _admission(self, host: str) -> int:
        return self._quotas.connect(host, self._clock.monotonic_ms())

    def _stopwatch(self, connection: Connection, callback: Callable[..., None], *arguments: Any) -> None:
        began = self._timer()
        callback(*arguments)
        percent = (self._timer() - began) * 100  # one second is 100%
        now_ms = self._clock.monotonic_ms()
        self._quotas.record(
            QuotaKey.REQUEST_PERCENTAGE, connection.user, connection.client_id or "", percent, now_ms
        )
