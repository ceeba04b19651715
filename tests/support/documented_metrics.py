"""Names of metrics in documents, and those that exist."""

import re

from tierlog.broker.gateway.catalogue import METRICS, Kind

NAME = re.compile(r"(?<![./\w])(?:kafka|tierlog|process)_[a-z0-9_]+\b")
PARTS = ("_bucket", "_count", "_sum")
OTHERS = {"tierlog_broker", "tierlog_session_broker", "tierlog_broker_factory", "kafka_exporter"}
"""Fixtures of the pytest plugin, and another program."""


def known_metrics() -> set[str]:
    parts = {m.name + part for m in METRICS.values() if m.kind is Kind.HISTOGRAM for part in PARTS}
    return METRICS.keys() | parts | OTHERS
