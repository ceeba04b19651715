"""Exposition: writes metrics in Prometheus' text format, version 0.0.4.

prometheus_client would write everything in one call, which blocks the event loop for half a second with ten
thousand partitions. This module yields to the event loop after every LINES_PER_TURN lines. Called by
`metrics`.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from tierlog.base.histogram import Histogram
from tierlog.broker.gateway.catalogue import METRICS
from tierlog.broker.gateway.metric_kinds import Metric

LINES_PER_TURN = 1_000
"""Lines that are written before other work gets a turn on the event loop. They take about 1 ms."""

PARTITIONS_PER_TURN = 250
"""Partitions read in one turn of the event loop: a millisecond."""

T = TypeVar("T")
Value = float | Histogram
Sample = tuple[tuple[str, ...], Value]
"""(label values, value). Labels at the end whose values are missing are not written."""

Family = tuple[str, Iterable[Sample]]
"""(name in METRICS, samples)."""

PAUSE: Family = ("", ())
"""Marker between families, at which other work gets a turn on the event loop."""


def single(value: Value) -> list[Sample]:
    """The one sample of a metric without labels."""
    return [((), value)]


def slices(items: Iterable[T]) -> Iterator[list[T]]:
    """A copy of the items, in slices of PARTITIONS_PER_TURN."""
    return lazy_slices(list(items))


def lazy_slices(items: Iterable[T], work: Callable[[T], float] = lambda item: 1.0) -> Iterator[list[T]]:
    """The items, in slices that each cost about as much as PARTITIONS_PER_TURN partitions. The items must not
    change while this runs. `work`: cost of an item, in partitions."""
    batch: list[T] = []
    total = 0.0
    for item in items:
        batch.append(item)
        total += work(item)
        if total >= PARTITIONS_PER_TURN:
            yield batch
            batch, total = [], 0.0
    if batch:
        yield batch


async def exposition(families: Iterable[Family]) -> bytes:
    """Return the text of all families, as UTF-8.

    Each value is read when its line is written, so the values are not of the same moment.
    """
    written: list[bytes] = []
    lines: list[str] = []
    for family in families:
        if family is PAUSE:
            written.append(_encoded(lines))
            lines = []
            await asyncio.sleep(0)
            continue
        name, samples = family
        metric = METRICS[name]
        lines += [f"# HELP {name} {metric.doc}", f"# TYPE {name} {metric.kind}"]
        for label_values, value in samples:
            lines += _lines(metric, [*zip(metric.labels, label_values, strict=False)], value)
            if len(lines) >= LINES_PER_TURN:
                written.append(_encoded(lines))
                lines = []
                await asyncio.sleep(0)
    return b"".join([*written, _encoded(lines)])


def _encoded(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _lines(metric: Metric, labels: list[tuple[str, str]], value: Value) -> Iterator[str]:
    if not isinstance(value, Histogram):
        yield f"{metric.name}{_labels(labels)} {value}"
        return
    for bound, count in value.cumulative():
        upper_bound = "+Inf" if bound is None else f"{bound * metric.scale:g}"
        yield f"{metric.name}_bucket{_labels([*labels, ('le', upper_bound)])} {count}"
    yield f"{metric.name}_count{_labels(labels)} {value.count}"
    yield f"{metric.name}_sum{_labels(labels)} {value.total * metric.scale}"


def _labels(labels: list[tuple[str, str]]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
