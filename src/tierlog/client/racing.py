"""Staggered attempts at several servers: the first that responds is used, and silent ones are not waited for.

As RFC 8305 does for the addresses of one host: the next attempt begins when an earlier one has failed, or
after a short time, and those under way continue. A paused process accepts connections and never responds, and
a host that drops packets does not even refuse them.
"""

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

STAGGER_S = 0.25
"""Section 8 of RFC 8305: the recommended delay between attempts. A server nearby has responded by then."""

SPREAD_MAX_S = 2.0
"""Time in which the attempts at all servers have begun, however many there are."""

T = TypeVar("T")
R = TypeVar("R")


class NoneResponded(Exception, Generic[T]):
    """All attempts have failed. `failures`: in the order of the servers."""

    def __init__(self, failures: Sequence[tuple[T, Exception]]) -> None:
        super().__init__("; ".join(f"{server}: {failure}" for server, failure in failures))
        self.failures = failures


def first_to_respond(
    attempt: Callable[[T], R],
    servers: Sequence[T],
    *,
    discard: Callable[[R], None] = lambda _: None,
    final: tuple[type[Exception], ...] = (),
) -> tuple[T, R]:
    """The first server whose attempt succeeds, and the result. Each attempt limits its own time. Those that
    are under way then continue in threads that do not keep the process from ending; `discard` gets what they
    bring. `final`: failures that every server would repeat; they are raised at once. Raises NoneResponded."""
    race = _Race(attempt, servers, discard, final)
    try:
        return race.run()
    finally:
        race.end()


class _Race(Generic[T, R]):
    def __init__(
        self,
        attempt: Callable[[T], R],
        servers: Sequence[T],
        discard: Callable[[R], None],
        final: tuple[type[Exception], ...],
    ) -> None:
        self._attempt = attempt
        self._servers = servers
        self._discard = discard
        self._final = final
        self._ended: SimpleQueue[tuple[int, R | None, Exception | None]] = SimpleQueue()
        self._lock = threading.Lock()  # an attempt that succeeds is either seen by `run` or discarded
        self._is_over = False

    def run(self) -> tuple[T, R]:
        failures: dict[int, Exception] = {}
        stagger_s = min(STAGGER_S, SPREAD_MAX_S / max(len(self._servers), 1))
        begun, next_at = 0, time.monotonic()
        while len(failures) < len(self._servers):
            if begun < len(self._servers) and (begun == len(failures) or time.monotonic() >= next_at):
                threading.Thread(target=self._try, args=(begun,), daemon=True, name="attempt").start()
                begun, next_at = begun + 1, time.monotonic() + stagger_s
            wait_s = None if begun == len(self._servers) else max(next_at - time.monotonic(), 0.0)
            try:
                index, result, failure = self._ended.get(timeout=wait_s)
            except Empty:
                continue
            if failure is None:
                return self._servers[index], result  # type: ignore[return-value]
            if isinstance(failure, self._final):
                raise failure
            failures[index] = failure
        raise NoneResponded([(self._servers[index], failures[index]) for index in sorted(failures)])

    def _try(self, index: int) -> None:
        try:
            result = self._attempt(self._servers[index])
        except Exception as failure:
            self._ended.put((index, None, failure))
            return
        with self._lock:
            if not self._is_over:
                self._ended.put((index, result, None))
                return
        self._discard(result)

    def end(self) -> None:
        """Discard further results, and those that came beside the one that was used."""
        with self._lock:
            self._is_over = True
        while not self._ended.empty():
            _, result, failure = self._ended.get()
            if failure is None:
                self._discard(result)  # type: ignore[arg-type]
