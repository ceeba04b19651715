"""Gathering evidence: what the nodes of a cluster say at one moment, for `tierlog doctor` and bundles; and
the files that only bundles have, for people.

Nothing is changed. Each request has a deadline, and what could not be read is named instead of failing the
whole. Brokers describe their settings without passwords, so that the evidence can be given to others.
"""

import json
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from tierlog.base.addresses import host_port
from tierlog.base.clock import SystemClock
from tierlog.broker.diagnosis.evidence import (
    BROKERS,
    CLUSTER,
    DIRECTORIES,
    HEALTH_PATHS,
    TIER,
    Answers,
    Evidence,
    ProcessState,
)
from tierlog.cli.admin import AdminApi
from tierlog.cli.errors import CliError
from tierlog.cli.observation import SOURCES_MAX, TIMEOUT_S, ask, in_parallel
from tierlog.client.errors import ClientError

SEGMENTS = "/v1/tier/segments"
CHECKED_TRANSACTIONS_PARTITIONS_MAX = 500
"""Each partition is asked for its producers, one after the other."""

HANGING_AFTER_MS = 15 * 60_000  # transaction.max.timeout.ms of Kafka: no coordinator waits for longer
CLOCK_WITHIN_MS = 4_000
"""A clock is compared if the response took no longer: half of that may be an error of the comparison."""

KAFKA_S = 20.0
"""Time for the requests of Kafka's protocol, after which the rest is left out."""

MANIFESTS_MAX = 200
"""Partitions whose manifest is read: the first request for each may read the object store."""

TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Names that Kafka allows. A server that is not a node may send others, and these become names of files."""

UNREADABLE = (CliError, ClientError, OSError, ValueError, LookupError, TypeError, AttributeError)
"""Failures of a request, and of responses that are not a document of tierlog."""


def gather(
    seeds: Sequence[str],
    bootstrap: str | None,
    *,
    processes: Mapping[int, ProcessState],
    roles: Mapping[int, Sequence[str]],
) -> Evidence:
    """The evidence of a running cluster. `seeds`: URLs of admin APIs. `bootstrap`: None: as registered."""
    not_read: list[str] = []
    answers = ask(seeds, (*HEALTH_PATHS, DIRECTORIES, TIER))
    not_read += [f"node {node} does not respond" for node in answers.urls if node not in answers.documents]
    not_read += answers.unread
    documents = {node: dict(found) for node, found in answers.documents.items()}
    for node in [*(answers.of(BROKERS) or documents)][:SOURCES_MAX]:
        read = partial(_read, not_read, f"topics of node {node}", partial(_api(answers, node).get, CLUSTER))
        [cluster] = in_parallel(lambda work: work(), [read])
        if isinstance(cluster, dict):
            documents[node][CLUSTER] = cluster
            break
    scraped = in_parallel(
        lambda node: _scrape(not_read, node, _api(answers, node)),
        list(documents),
        on_late=lambda node: not_read.append(f"metrics of node {node}: it did not respond in time"),
    )
    found = dict(zip(documents, scraped, strict=True))
    settings: dict[int, dict[str, str | None]] = {}
    addresses = bootstrap or _read(not_read, "addresses of brokers", partial(_bootstrap, documents))
    ask_brokers = partial(_of_brokers, not_read, settings, addresses)
    [hanging] = in_parallel(ask_brokers, [set(documents)], deadline_s=KAFKA_S + 3 * TIMEOUT_S)
    if hanging is None:
        not_read.append("settings and transactions: no time was left")
    return Evidence(
        taken_at_ms=SystemClock().now_ms(),
        answers=Answers(urls=answers.urls, documents=documents),
        metrics={node: one[0] for node, one in found.items() if one},
        clocks={node: one[1] for node, one in found.items() if one and one[1] is not None},
        settings=dict(settings),
        hanging=hanging or (),
        processes=processes,
        roles=roles,
        not_read=tuple(not_read),
    )


def last_lines(answers: Answers, nodes: Collection[int], not_read: list[str]) -> dict[str, str]:
    """File name -> the last lines of the log of each of these nodes. Adds to `not_read`."""

    def read(node: int) -> Any:
        work = partial(_api(answers, node).get, "/v1/log")
        return _read(not_read, f"log of node {node}", lambda: "".join(f"{one}\n" for one in work()["lines"]))

    def on_late(node: int) -> None:
        not_read.append(f"log of node {node}: it did not respond in time")

    wanted = sorted(nodes)
    found = in_parallel(read, wanted, on_late=on_late)
    return {f"node-{node}.last.log": text for node, text in zip(wanted, found, strict=True) if text}


def manifests(answers: Answers, not_read: list[str]) -> dict[str, str]:
    """File name -> the segments in the manifest of a partition, as its leader describes them (GET
    /v1/tier/segments). Adds to `not_read`."""
    leaders = {
        (str(row["topic"]), int(row["partition"])): node
        for node, response in answers.of(TIER).items()
        for row in _read(not_read, f"{TIER} of node {node}", partial(_remote_rows, response)) or ()
    }
    wanted = [one for one in sorted(leaders) if TOPIC_NAME.fullmatch(one[0])]
    if len(wanted) > MANIFESTS_MAX:
        not_read.append(f"manifests of {len(wanted) - MANIFESTS_MAX:,} of {len(wanted):,} partitions")
        del wanted[MANIFESTS_MAX:]

    def read(one: tuple[str, int]) -> Any:
        work = partial(_api(answers, leaders[one]).get, SEGMENTS, topic=one[0], partition=one[1])
        return _read(not_read, f"manifest of {one[0]}-{one[1]}", work)

    def on_late(one: tuple[str, int]) -> None:
        not_read.append(f"manifest of {one[0]}-{one[1]}: node {leaders[one]} did not respond in time")

    found = in_parallel(read, wanted, on_late=on_late)
    return {
        f"{topic}-{partition}.json": json.dumps(response, indent=1)
        for (topic, partition), response in zip(wanted, found, strict=True)
        if response is not None
    }


def _remote_rows(response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in response["partitions"] if row["remote_segments"]]


def _api(answers: Answers, node: int) -> AdminApi:
    return AdminApi(answers.urls[node], timeout_s=TIMEOUT_S)


def _read(not_read: list[str], what: str, work: Callable[[], Any]) -> Any:
    """The work's result; None after a failure, which is noted."""
    try:
        return work()
    except UNREADABLE as failure:
        not_read.append(f"{what}: {getattr(failure, 'message', None) or repr(failure)}")
        return None


def _scrape(not_read: list[str], node: int, api: AdminApi) -> tuple[str, float | None] | None:
    """Metrics, and by how many seconds the node's wall clock is ahead."""

    clock = SystemClock()

    def work() -> tuple[str, float | None]:
        begun_ms = clock.now_ms()
        text, headers = api.text("/metrics")
        ended_ms = clock.now_ms()
        theirs = parsedate_to_datetime(headers["Date"] or "").timestamp() + 0.5  # it has no fraction
        if ended_ms - begun_ms > CLOCK_WITHIN_MS:
            return text, None
        return text, theirs - (begun_ms + ended_ms) / 2_000

    found: tuple[str, float | None] | None = _read(not_read, f"metrics of node {node}", work)
    return found


def _bootstrap(documents: Mapping[int, Mapping[str, Any]]) -> str | None:
    brokers = next((one[CLUSTER]["brokers"] for one in documents.values() if CLUSTER in one), ())
    return ",".join(host_port(one["host"], one["port"]) for one in brokers if not one["fenced"]) or None


def _of_brokers(
    not_read: list[str],
    settings: dict[int, dict[str, str | None]],
    bootstrap: str | None,
    responding: Set[int],
) -> list[dict[str, Any]]:
    """By Kafka's protocol: adds the settings of each broker that responds. Returns hanging transactions, if
    all brokers respond."""
    from tierlog.cli.client import KafkaClient

    deadline = time.monotonic() + KAFKA_S

    def ask_all() -> list[dict[str, Any]]:
        with KafkaClient(bootstrap, timeout_s=2 * TIMEOUT_S) as client:
            brokers = {broker.node_id for broker in client.metadata([]).brokers}
            for broker in sorted(brokers & responding):
                work = partial(_settings_of, client, broker, deadline)
                if (found := _read(not_read, f"settings of broker {broker}", work)) is not None:
                    settings[broker] = found
            if not brokers <= responding:
                not_read.append("hanging transactions: not all brokers respond")
                return []
            return _read(not_read, "hanging transactions", partial(_hanging, client, deadline)) or []

    if bootstrap is None:
        return []
    found: list[dict[str, Any]] | None = _read(not_read, "settings and transactions", ask_all)
    return found or []


def _settings_of(client: Any, broker: int, deadline: float) -> dict[str, str | None]:
    from tierlog.cli import configs

    if time.monotonic() > deadline:
        raise CliError("no time was left")
    rows = configs.described(client, configs.BROKER_RESOURCE, str(broker), "settings", broker=broker)
    return {row.name: row.value for row in rows if not row.is_sensitive}


def _hanging(client: Any, deadline: float) -> list[dict[str, Any]]:
    from tierlog.cli import transactions

    topics = client.metadata(None).topics
    count = sum(len(topic.partitions) for topic in topics)
    if count > CHECKED_TRANSACTIONS_PARTITIONS_MAX or time.monotonic() > deadline:
        raise CliError(f"{count} partitions are too many to ask: run `tierlog txn find-hanging`")
    return transactions.hanging(client, None, HANGING_AFTER_MS)
