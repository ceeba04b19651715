"""Reasons why a connection ended, for the log and for metrics."""

from enum import StrEnum


class Why(StrEnum):
    """Why a connection ended; a label of metrics."""

    CLIENT = "client"  # the client closed it
    NETWORK = "network"
    MALFORMED = "malformed"  # what it sent is no request
    UNANSWERED = "unanswered"  # an error for which the API has no answer
    SLOW = "slow"  # request.header.timeout.ms, request.receive.timeout.ms
    BLOCKED = "blocked"  # response.send.timeout.ms
    CROWDED = "crowded"  # queued.max.response.total.bytes, queued.max.request.bytes
    IDLE = "idle"  # connections.max.idle.ms
    STOPPING = "stopping"
