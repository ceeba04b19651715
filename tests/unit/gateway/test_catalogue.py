"""Every metric's name, by the rules of `promtool check metrics` (promlint of Prometheus' Go client)."""

import re

import pytest

from tierlog.broker.gateway.catalogue import METRICS, SECTIONS
from tierlog.broker.gateway.metric_kinds import Kind, Metric

ABBREVIATED = {"s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"}
OF_KAFKA_EXPORTER = {"kafka_consumergroup_lag_sum"}
"""promtool refuses this name, which dashboards of kafka_exporter use."""

NOT_BASE_UNITS = re.compile(
    r"(pico|nano|micro|milli|centi|deci|deca|hecto|kilo|kibi|mega|mibi|giga|gibi|tera|tebi|peta|pebi)"
    r"(seconds|bytes|meters|grams|volts|amperes|joules)"
    r"|minutes|hours|days|weeks|bits"
)


@pytest.mark.parametrize("metric", METRICS.values(), ids=list(METRICS))
def test_promtool_accepts_the_metrics(metric: Metric) -> None:
    words = metric.name.split("_")
    assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name) and metric.doc
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) for label in metric.labels)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.kind.value not in words[1:]
    assert metric.name in OF_KAFKA_EXPORTER or not metric.name.endswith(("_count", "_sum", "_bucket"))
    assert not {"le", "quantile"} & {*metric.labels}
    assert not ABBREVIATED & {*words[1:]}
    assert not any(NOT_BASE_UNITS.fullmatch(word) for word in words)


def test_metric_names_are_unique() -> None:
    assert len(METRICS) == sum(len(metrics) for metrics in SECTIONS.values())
