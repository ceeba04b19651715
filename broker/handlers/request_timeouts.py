"""Timeout of requests that the controller decides: the client's, up to a limit."""

TIMEOUT_MAX_S = 30.0  # without a quorum the request occupies its connection for this long


def within_s(timeout_ms: int) -> float:
    return min(max(timeout_ms, 0) / 1000, TIMEOUT_MAX_S)
