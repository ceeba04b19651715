"""Names of metrics in documents, and those that exist."""

import re

from tierlog.broker.gateway.catalogue import METRICS
from tierlog.broker.gateway.metric_kinds import Kind
from tierlog.monitoring.kafka_names import MISSING, RECORDED, SENSELESS
from tierlog.rest.metrics import CATALOGUE

NAME = re.compile(r"(?<![./\w])(?:kafka|tierlog|process)_[a-z0-9_]+\b")
PARTS = ("_bucket", "_count", "_sum")
OTHERS = {
    "tierlog_broker",
    "tierlog_session_broker",
    "tierlog_broker_factory",
    "kafka_exporter",
    "kafka_names",
}
"""Fixtures of the pytest plugin, another program, and a file of rules."""


def known_metrics() -> set[str]:
    histograms = [m.name for m in METRICS.values() if m.kind is Kind.HISTOGRAM]
    histograms += [m.name for m in CATALOGUE if m.kind == "histogram"]
    parts = {name + part for name in histograms for part in PARTS}
    return (
        METRICS.keys()
        | RECORDED.keys()
        | MISSING.keys()
        | SENSELESS.keys()
        | {m.name for m in CATALOGUE}
        | parts
        | OTHERS
    )
