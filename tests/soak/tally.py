"""Client counters since the last report, and the first error of each kind."""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping


class Tally:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._faults: dict[str, str] = {}

    def count(self, what: str, count: int = 1) -> None:
        with self._lock:
            self._counts[what] += count

    def fault(self, kind: str, text: str) -> None:
        with self._lock:
            self._counts[f"fault: {kind}"] += 1
            self._faults.setdefault(kind, text)

    def took(self, messages: Iterable[object]) -> None:
        """Count the messages and errors that a confluent-kafka consumer returned."""
        read = 0
        for message in messages:
            read += 1
            if error := message.error():  # type: ignore[attr-defined]
                self.fault("consume", str(error))
        self.count("read", read)

    def add(self, reported: Mapping[str, Mapping[str, object]]) -> None:
        """Add the counts of another tally."""
        with self._lock:
            self._counts.update(reported["counts"])
            for kind, text in reported["faults"].items():
                self._faults.setdefault(kind, str(text))

    def take(self) -> dict[str, object]:
        """Counts since the last call, and the first errors of the whole run."""
        with self._lock:
            counts, self._counts = dict(self._counts), Counter()
            return {"counts": counts, "faults": dict(self._faults)}
