"""Scrapes the metrics of a broker process as samples by name and labels."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families
from waiting import until

from tierlog.testing import TierlogBroker


def scraped(broker: TierlogBroker) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def metric(broker: TierlogBroker, name: str, **labels: str) -> float:
    """The value of the sample; 0 if it does not exist."""
    return scraped(broker).get((name, frozenset(labels.items())), 0.0)


def wait_for_metric(broker: TierlogBroker, least: float, name: str, **labels: str) -> None:
    until(lambda: metric(broker, name, **labels) >= least, f"{name} {labels} does not reach {least}")
