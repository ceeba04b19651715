"""Reasons for closing a connection."""

from enum import StrEnum


class CloseReason(StrEnum):
    """Why a connection was closed; a label of metrics."""

    CLIENT = "client"  # the client closed it
    NETWORK = "network"
    TLS_HANDSHAKE = "tls_handshake"  # it failed, or took too long
    AUTHENTICATION = "authentication"  # the login failed or expired, or a request came before it
    MALFORMED = "malformed"  # not a valid request
    UNANSWERED = "unanswered"  # an error that the API's response cannot carry
    SLOW = "slow"  # request.header.timeout.ms, request.receive.timeout.ms
    BLOCKED = "blocked"  # response.send.timeout.ms
    QUEUE_FULL = "queue_full"  # queued.max.response.total.bytes, queued.max.request.bytes
    IDLE = "idle"  # connections.max.idle.ms
    STOPPING = "stopping"
