"""Cases of `make bench` about security, on a real broker: they log in, and produce over TLS."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from cases import CASES, GROUPS
from secure_brokers import secure_tierlog
from suite import Broker, run_case

pytestmark = pytest.mark.slow
PACE = ("--seconds", "0.2", "--warm-s", "0", "--reps", "1", "--rest", "0", "--quiet-timeout", "0")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with secure_tierlog("tierlog", None, {}) as running:
        yield running


def run(broker: Broker, *words: str) -> dict[str, list[float]]:
    case, *options = (word.format(**broker.placeholders) for word in words)
    summary: dict[str, list[float]] = run_case(broker, case, *PACE, "--retries", "0", *options)[-1]  # type: ignore[assignment]
    return summary


def test_words_of_each_case_have_a_value(broker: Broker) -> None:
    for name in GROUPS["security"]:
        for word in CASES[name].words:
            word.format(topic="t", **broker.placeholders)


def test_each_login_at_once_is_measured(broker: Broker) -> None:
    summary = run(broker, "login-storm", "--sasl", "{sasl}", "--ca", "{ca}", "--at-once", "7")
    assert summary["latency_n"] == [7, 7, 7]


def test_logins_follow_each_other(broker: Broker) -> None:
    summary = run(broker, "logins", "--sasl", "{sasl}", "--ca", "{ca}", "--at-once", "2")
    assert summary["latency_n"][0] > 2


def test_produce_over_tls_is_measured(broker: Broker) -> None:
    summary = run(broker, "raw-produce", "--batch", "64k", "--tls", "{tls}", "--ca", "{ca}")
    assert summary["mb_s"][0] > 0
