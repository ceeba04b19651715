"""Repeated denials: the first is an entry at once, and the others of a window become one entry with a count.

A client that is refused tries again, perhaps thousands of times a second, and a stranger can vary names as it
likes. Therefore the number of different denials of a window is bounded, for each client and for the node.
Beyond these bounds a client's denials, and then those of all clients, are counted together. Per window there
are therefore some 1,400 entries at most, whatever arrives. Called by `audit.log`.
"""

from collections import Counter
from dataclasses import dataclass

from tierlog.broker.audit.entries import Entry, timestamp

KEYS_PER_CLIENT_MAX = 50
"""Different denials of one address in a window."""

KEYS_MAX = 500
"""Different denials of all addresses in a window."""

CLIENTS_MAX = 100
"""Addresses whose further denials are counted by address; those of others are counted for the node."""

Key = tuple[object, ...]
UNIQUE_FIELDS = frozenset({"client_id"})
"""Fields that do not distinguish denials: clients choose them."""


@dataclass(slots=True)
class _Repeated:
    entry: Entry
    client: str
    first_ms: int
    count: int = 1


class Repeats:
    """Denials of the current windows, each of which begins with the first denial of its kind."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._repeated: dict[Key, _Repeated] = {}
        self._of_client: Counter[str] = Counter()  # different denials by client, without collapsed ones
        self._collapsed: Counter[str] = Counter()  # collapsed entries by client

    def add(self, entry: Entry, now_ms: int) -> Entry | None:
        """The entry to write now; None if the denial was counted."""
        client = str(entry.get("client", ""))
        key: Key = tuple(item for item in entry.items() if item[0] not in UNIQUE_FIELDS)
        if key not in self._repeated and self._is_full(client):
            entry, client = self._collapse(entry["event"], client)
            key = tuple(entry.items())
        if (known := self._repeated.get(key)) is not None:
            known.count += 1
            return None
        self._repeated[key] = _Repeated(entry, client, now_ms)
        self._counter(entry)[client] += 1
        return {**entry, "count": 1}

    def due(self, now_ms: int) -> list[Entry]:
        """Entries for denials that were counted in windows that have ended."""
        ended = [
            key for key, one in self._repeated.items() if not 0 <= now_ms - one.first_ms < self._window_ms
        ]
        return [entry for key in ended if (entry := self._end(key)) is not None]

    def all(self) -> list[Entry]:
        """Entries for everything that was counted, before the node stops."""
        return [entry for key in list(self._repeated) if (entry := self._end(key)) is not None]

    def _is_full(self, client: str) -> bool:
        return self._of_client[client] >= KEYS_PER_CLIENT_MAX or self._of_client.total() >= KEYS_MAX

    def _collapse(self, event: str, client: str) -> tuple[Entry, str]:
        if client in self._collapsed or len(self._collapsed) < CLIENTS_MAX:
            return {"event": event, "client": client, "collapsed": "client"}, client
        return {"event": event, "collapsed": "node"}, ""

    def _counter(self, entry: Entry) -> Counter[str]:
        return self._collapsed if "collapsed" in entry else self._of_client

    def _end(self, key: Key) -> Entry | None:
        one = self._repeated.pop(key)
        counter = self._counter(one.entry)
        counter[one.client] -= 1
        if not counter[one.client]:
            del counter[one.client]
        if one.count == 1:
            return None
        return {**one.entry, "count": one.count - 1, "first": timestamp(one.first_ms)}
