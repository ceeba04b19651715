"""Names of metrics in documents, and those that exist."""

import re

from tierlog.broker.gateway.catalogue import METRICS, Kind
from tierlog.rest.metrics import CATALOGUE

NAME = re.compile(r"(?<![./\w])(?:kafka|tierlog|process)_[a-z0-9_]+\b")
PARTS = ("_bucket", "_count", "_sum")
OTHERS = {"tierlog_broker", "tierlog_session_broker", "tierlog_broker_factory", "kafka_exporter"}
"""Fixtures of the pytest plugin, and another program."""


def known_metrics() -> set[str]:
    histograms = [m.name for m in METRICS.values() if m.kind is Kind.HISTOGRAM]
    histograms += [m.name for m in CATALOGUE if m.kind == "histogram"]
    parts = {name + part for name in histograms for part in PARTS}
    return METRICS.keys() | {m.name for m in CATALOGUE} | parts | OTHERS
