"""Tracing as parts of the node see it: spans of requests, uploads and commits.

The implementation with OpenTelemetry is `broker/tracing.py`. NO_TRACES measures and keeps nothing. Requests
cost nothing then: `handlers.table` wraps their handlers only if the node traces.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

Attribute = str | int | float | bool


class Span(Protocol):
    """One timed step of a trace."""

    def set(self, name: str, value: Attribute) -> None: ...

    def fail(self, why: str) -> None:
        """Mark the step as failed."""

    def begin(self, name: str) -> "Span":
        """Begin a step of this one."""

    def end(self) -> None: ...


class Tracer(Protocol):
    """`begun`: spans so far; `exported`: those that the collector has accepted."""

    @property
    def begun(self) -> int: ...

    @property
    def exported(self) -> int: ...

    def span(self, name: str, **attributes: Attribute) -> AbstractContextManager[None]:
        """A step, which is part of the step around it, or else begins a trace if it is sampled. An exception
        marks it as failed."""


class RequestTracer(Tracer, Protocol):
    def samples(self) -> bool:
        """Decide for the next request; cheap."""

    def begin(self, name: str, parents: Sequence[str]) -> Span:
        """Begin the trace of a sampled request. `parents`: values of `traceparent` (W3C Trace Context) in
        the request; invalid ones are ignored."""


class NoTraces:
    """Traces nothing."""

    begun = exported = 0

    def span(self, name: str, **attributes: Attribute) -> AbstractContextManager[None]:
        return _NOTHING


_NOTHING = nullcontext()
NO_TRACES = NoTraces()
