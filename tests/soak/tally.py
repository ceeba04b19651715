"""What clients did since somebody last asked: counts, and the first error of each kind."""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping


class Tally:
    """Safe in threads."""

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
        """What a consumer of confluent-kafka got, errors among them."""
        read = 0
        for message in messages:
            read += 1
            if error := message.error():  # type: ignore[attr-defined]
                self.fault("consume", str(error))
        self.count("read", read)

    def add(self, told: Mapping[str, Mapping[str, object]]) -> None:
        """What another tally took."""
        with self._lock:
            self._counts.update(told["counts"])
            for kind, text in told["faults"].items():
                self._faults.setdefault(kind, str(text))

    def take(self) -> dict[str, object]:
        """Counts since the last call; the first faults of all time."""
        with self._lock:
            counts, self._counts = dict(self._counts), Counter()
            return {"counts": counts, "faults": dict(self._faults)}
