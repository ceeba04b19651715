"""Kinds of metrics, and the entries of the metric catalogue (`catalogue`), which `exposition` writes."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """`scale`: factor from the unit of the values to the unit in the name."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()
    scale: float = 1.0


def counter(name: str, doc: str, *labels: str) -> Metric:
    return Metric(name, Kind.COUNTER, doc, labels)


def gauge(name: str, doc: str, *labels: str) -> Metric:
    return Metric(name, Kind.GAUGE, doc, labels)


def milliseconds(name: str, doc: str, *labels: str) -> Metric:
    return Metric(name, Kind.HISTOGRAM, doc, labels, 1000.0)
