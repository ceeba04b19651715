"""How long a request that the controller decides may take: as long as its client says, within reason."""

LONGEST_S = 30.0  # without a quorum; it holds a place among the connection's requests meanwhile


def within_s(timeout_ms: int) -> float:
    return min(max(timeout_ms, 0) / 1000, LONGEST_S)
