"""pytest plugin with real tierlog brokers, and the broker class for other test frameworks::

    def test_round_trip(tierlog_broker):
        producer = Producer({"bootstrap.servers": tierlog_broker.bootstrap})

Each broker is a process with its own free ports and temporary directories. Fixtures: `tierlog_session_broker`
(one broker for the session, fastest), `tierlog_broker` (a new broker for each test) and
`tierlog_broker_factory` (any number of brokers, with settings). A broker can be killed, stopped and restarted
on the same ports and data. The end of its log is attached to the report of a failed test.

A secure broker has TLS, users (SCRAM-SHA-512) and ACLs; clients take their settings from it::

    def test_reports_cannot_write(tierlog_broker_factory):
        broker = tierlog_broker_factory(secure=True, users=["reports"])
        admin = AdminClient(broker.client_settings())  # a super user
        producer = Producer(broker.client_settings("reports"))

`python_client_settings` has those of kafka-python and aiokafka, and `client_file` those of Java clients and
of `tierlog --client-config`. Without `secure`, both methods return the bootstrap servers alone, so that a
test can run with both.
"""

import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tierlog.cli.process import BrokerFailed, TierlogBroker

__all__ = ["TierlogBrokerFactory", "BrokerFailed", "TierlogBroker"]

_BROKERS: pytest.StashKey[list[TierlogBroker]] = pytest.StashKey()
TierlogBrokerFactory = Callable[..., TierlogBroker]
"""`factory(settings=None, *, start=True, secure=False, users=(), object_store=None, environment=None) ->
TierlogBroker`. `users`: created in a secure broker, in addition to the administrator."""


@pytest.fixture
def tierlog_broker_factory(request: pytest.FixtureRequest) -> Iterator[TierlogBrokerFactory]:
    """Creates brokers: `factory({"num.partitions": 3}, object_store="s3://…")`. All are killed
    (SIGKILL) when the test ends."""
    made: list[TierlogBroker] = request.node.stash.setdefault(_BROKERS, [])
    with tempfile.TemporaryDirectory(prefix="tierlog-test-", ignore_cleanup_errors=True) as directory:

        def factory(
            settings: Mapping[str, object] | None = None, *, start: bool = True, **options: Any
        ) -> TierlogBroker:
            broker = TierlogBroker(Path(directory) / f"broker-{len(made) + 1}", settings, **options)
            made.append(broker)
            return broker.start() if start else broker

        try:
            yield factory
        finally:
            for broker in made:
                broker.kill()


@pytest.fixture
def tierlog_broker(tierlog_broker_factory: TierlogBrokerFactory) -> TierlogBroker:
    """A new broker for this test."""
    return tierlog_broker_factory()


@pytest.fixture(scope="session")
def tierlog_session_broker() -> Iterator[TierlogBroker]:
    """One broker for all tests of the session. Tests must use different topics."""
    with (
        tempfile.TemporaryDirectory(prefix="tierlog-test-", ignore_cleanup_errors=True) as directory,
        TierlogBroker(Path(directory) / "session") as broker,
    ):
        yield broker


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the end of each broker's log to the report of a failed test."""
    report = yield
    if not report.failed:
        return report
    none: list[TierlogBroker] = []
    brokers = item.stash.get(_BROKERS, none)
    shared = getattr(item, "funcargs", {}).get("tierlog_session_broker")
    for broker in [*brokers, *([shared] if shared is not None else [])]:
        report.sections.append((f"tierlog broker {broker.bootstrap}", broker.log_tail()))
    return report
