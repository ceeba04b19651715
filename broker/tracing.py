"""Traces with OpenTelemetry (ADR 0053): samples, and exports spans with OTLP over HTTP. Built by app.py.

The SDK's batch processor exports in a thread of its own, from a queue with a bound: nothing here waits for
the collector. While it is unreachable, spans are dropped, and the log has one line when that begins and one
when it ends. `opentelemetry` is an optional dependency, imported only if a node traces.

The decision for a trace is made where it begins, by `traces.sampler.ratio`. Endpoint, headers, certificates,
queue and resource are variables of OpenTelemetry's specification (OTEL_EXPORTER_OTLP_…, OTEL_BSP_…,
OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME), which the SDK reads.
"""

import asyncio
import logging
import random
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import structlog

from tierlog import __version__
from tierlog.base.tracing import Attribute, Span
from tierlog.config.definitions import InvalidSetting
from tierlog.config.node import NodeSettings

CLOSE_TIMEOUT_S = 2.0
"""How long the stop of a node waits for the export of the last spans."""

EXPORT_LOGGER, QUEUE_LOGGER = "opentelemetry.exporter", "opentelemetry.sdk._shared_internal"
"""They log every attempt and every dropped span; `_Exporter` logs once, with the last reason."""

REASON_CHARACTERS = 500

_log = structlog.get_logger("tierlog")


def traces_of(settings: NodeSettings, cluster_id: str, rng: random.Random) -> "Traces | None":
    """None: the node does not trace. Raises InvalidSetting if the optional dependency is missing, or a
    variable of OpenTelemetry is invalid."""
    if not settings.traces_sampler_ratio:
        return None
    try:
        return Traces(settings, cluster_id, rng)
    except ImportError as missing:
        why = f"traces.sampler.ratio needs the optional dependency: pip install 'tierlog[traces]' ({missing})"
        raise InvalidSetting(why) from None
    except ValueError as wrong:
        raise InvalidSetting(f"a variable of OpenTelemetry is invalid: {wrong}") from None


class Traces:
    """The tracer of a node."""

    def __init__(self, settings: NodeSettings, cluster_id: str, rng: random.Random) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        reasons = _Reasons()
        logging.getLogger(QUEUE_LOGGER).setLevel(logging.CRITICAL)
        logging.getLogger(EXPORT_LOGGER).addHandler(reasons)
        logging.getLogger(EXPORT_LOGGER).propagate = False
        resource = Resource(
            {
                "service.name": "tierlog",
                "service.version": __version__,
                "service.instance.id": str(settings.node_id),
                "tierlog.cluster.id": cluster_id,
            }
        )
        self.begun = 0
        self._exporter = _Exporter(OTLPSpanExporter(), reasons)
        self._processor = BatchSpanProcessor(self._exporter)
        provider = TracerProvider(
            resource=resource.merge(OTELResourceDetector().detect()),
            sampler=ParentBased(ALWAYS_ON),  # what begins here is sampled; see `samples`
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._processor)
        self._ratio, self._rng = settings.traces_sampler_ratio, rng
        self._trace = trace
        self.failed = trace.StatusCode.ERROR
        self.within = trace.set_span_in_context
        self._tracer = provider.get_tracer("tierlog", __version__)
        self._read_parent = TraceContextTextMapPropagator().extract
        not_sampled = trace.SpanContext(trace_id=1, span_id=1, is_remote=False)
        self._not_sampled = trace.set_span_in_context(trace.NonRecordingSpan(not_sampled))

    @property
    def exported(self) -> int:
        return self._exporter.exported

    def samples(self) -> bool:
        return self._rng.random() < self._ratio

    def begin(self, name: str, parents: Sequence[str]) -> Span:
        links = []
        for parent in parents:
            carrier = {"traceparent": parent}
            found = self._trace.get_current_span(self._read_parent(carrier, self._not_sampled))
            if (context := found.get_span_context()).is_remote:
                links.append(self._trace.Link(context))
        root: Any = self._trace.set_span_in_context(self._trace.INVALID_SPAN)
        return _Span(self, self.start(name, root, kind=self._trace.SpanKind.SERVER, links=links))

    def start(self, name: str, parent: Any, **options: Any) -> Any:
        """Start a span of OpenTelemetry in a context."""
        self.begun += 1
        return self._tracer.start_span(name, parent, **options)

    @contextmanager
    def span(self, name: str, **attributes: Attribute) -> Iterator[None]:
        from opentelemetry import context

        begins = not self._trace.get_current_span().get_span_context().is_valid
        if begins and not self.samples():
            token = context.attach(self._not_sampled)
            try:
                yield
            finally:
                context.detach(token)
            return
        self.begun += 1
        with self._tracer.start_as_current_span(name, attributes=attributes):
            yield

    async def close(self) -> None:
        """Export what is queued, for CLOSE_TIMEOUT_S at most."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self._processor.shutdown()
            with suppress(RuntimeError):  # the node has stopped in the meantime
                loop.call_soon_threadsafe(ended.set)

        # not of an executor, for which the end of the process waits
        threading.Thread(target=flush, name="traces", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await ended.wait()


class _Span:
    """A span of OpenTelemetry."""

    def __init__(self, traces: Traces, span: Any) -> None:
        self._traces, self._span = traces, span

    def set(self, name: str, value: Attribute) -> None:
        self._span.set_attribute(name, value)

    def fail(self, why: str) -> None:
        self._span.set_status(self._traces.failed, why)

    def begin(self, name: str) -> "_Span":
        return _Span(self._traces, self._traces.start(name, self._traces.within(self._span)))

    def end(self) -> None:
        self._span.end()


class _Reasons(logging.Handler):
    """Keeps the last messages of the exporter in place of logging them: the error, and that it gave up."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: deque[str] = deque(maxlen=2)

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            self._messages.append(record.getMessage()[:REASON_CHARACTERS])

    def take(self) -> str:
        taken = " ".join(self._messages)
        self._messages.clear()
        return taken


class _Exporter:
    """Passes spans on to the collector, in the processor's thread. Counts them, and logs when the collector
    begins to refuse them and when it accepts them again."""

    def __init__(self, inner: Any, reasons: _Reasons) -> None:
        self._inner = inner
        self._reasons = reasons
        self._fails = False
        self.exported = 0

    def export(self, spans: Sequence[Any]) -> Any:
        result = self._inner.export(spans)
        if result.name == "SUCCESS":
            self.exported += len(spans)
            if self._fails:
                _log.info("traces.exported")
        elif not self._fails:
            _log.warning("traces.export_failed", why=self._reasons.take())
        self._fails = result.name != "SUCCESS"
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True
