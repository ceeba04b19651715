"""Evidence: what the nodes of a cluster say at one moment, and the observation of its health in that.

A node that is cut off from the others has stale metadata. Brokers and partitions are therefore taken from the
leader of the quorum, or else from the node with the highest applied index. Used by the rules of health and
diagnosis, by commands and by the web page.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

QUORUM, BROKERS, UNHEALTHY_PARTITIONS = "/v1/quorum", "/v1/brokers", "/v1/partitions?condition=unhealthy"
HEALTH_PATHS = (
    "/v1/scrub",
    "/v1/tier/damaged",
    "/v1/tier/behind",
    "/v1/tier/unread",
    "/v1/tier/store",
    "/v1/tier/scrub",
    "/v1/certificates",
    "/v1/versions",
)
"""Paths that each node is asked for."""

Response = dict[str, Any]
CLUSTER, TIER, DIRECTORIES = "/v1/cluster", "/v1/tier/status", "/v1/directories"

SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
LABEL = re.compile(r'(?P<name>[a-zA-Z_]\w*)="(?P<value>(?:[^"\\]|\\.)*)"')


class ProcessState(StrEnum):
    """State of a node's process on this machine, for the nodes of a local cluster."""

    UP = "up"
    PAUSED = "paused"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """`quorum`: node -> GET /v1/quorum, None if the node did not respond. `brokers` and `unhealthy`: GET
    /v1/brokers and /v1/partitions of one node, None if no node responded. `damaged`: damaged ranges of all
    brokers (GET /v1/scrub), and `damaged_remote`: of remote objects (GET /v1/tier/damaged), each row with its
    `broker`. `behind`: partitions that are not uploaded in time (GET /v1/tier/behind), likewise. `unread`:
    partitions without a leader because their manifest in the bucket was not read (GET /v1/tier/unread),
    likewise. `stores`: GET /v1/tier/store of the brokers whose object store is not available, each with its
    `broker`. `manifests`: manifest roots and documents in which the last pass of the bucket scrubber found a
    fault (GET /v1/tier/scrub). `certificates`: of TLS listeners (GET /v1/certificates), each with its
    `broker`. `versions`: nodes that a node cannot exchange messages with (GET /v1/versions), each with that
    node as `broker`."""

    quorum: Mapping[int, Response | None] = field(default_factory=dict)
    brokers: Response | None = None
    unhealthy: Response | None = None
    damaged: tuple[Response, ...] = ()
    damaged_remote: tuple[Response, ...] = ()
    behind: tuple[Response, ...] = ()
    unread: tuple[Response, ...] = ()
    stores: tuple[Response, ...] = ()
    manifests: tuple[Response, ...] = ()
    certificates: tuple[Response, ...] = ()
    versions: tuple[Response, ...] = ()

    @property
    def registered(self) -> dict[int, Response]:
        """The registered brokers by id; empty if no node responded."""
        return {int(broker["id"]): broker for broker in (self.brokers or {}).get("brokers", ())}

    @property
    def leader(self) -> int | None:
        """Leader of the quorum: the node that reports itself as leader in the highest term."""
        leading = [response for response in self.quorum.values() if response and response["role"] == "leader"]
        newest = max(leading, key=lambda response: int(response["term"]), default=None)
        return None if newest is None else int(newest["node_id"])

    @property
    def voters(self) -> tuple[int, ...]:
        """Voters as reported by the leader or, if there is none, by the node with the highest applied
        index."""
        responses = [response for response in self.quorum.values() if response]
        best = max(
            responses,
            key=lambda response: (response["node_id"] == self.leader, response["applied_index"]),
            default=None,
        )
        return tuple(sorted(int(one) for one in best["voters"])) if best else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Responses of the nodes' admin APIs. `urls`: of all nodes that the others know. `documents`: node ->
    path -> response; a node or a path without a response is missing. `unread`: the missing paths of nodes
    that respond, and why."""

    urls: Mapping[int, str] = field(default_factory=dict)
    documents: Mapping[int, Mapping[str, Response]] = field(default_factory=dict)
    unread: Sequence[str] = ()

    def of(self, path: str) -> dict[int, Response]:
        """The responses to a path, by node."""
        return {node: found[path] for node, found in self.documents.items() if path in found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """`metrics`: node -> its exposition in Prometheus' text format. `clocks`: node -> seconds by which its
    wall clock is ahead of this machine's, unless it responded too slowly to tell. `settings`: broker ->
    setting -> value, without passwords. `hanging`: transactions that no coordinator will end. `processes`,
    `roles`: of a local cluster's nodes. `not_read`: what is missing, and why."""

    taken_at_ms: int
    answers: Answers = field(default_factory=Answers)
    metrics: Mapping[int, str] = field(default_factory=dict)
    clocks: Mapping[int, float] = field(default_factory=dict)
    settings: Mapping[int, Mapping[str, str | None]] = field(default_factory=dict)
    hanging: Sequence[Mapping[str, Any]] = ()
    processes: Mapping[int, ProcessState] = field(default_factory=dict)
    roles: Mapping[int, Sequence[str]] = field(default_factory=dict)
    not_read: Sequence[str] = ()

    @property
    def cluster(self) -> Mapping[str, Any]:
        """GET /v1/cluster of one node; empty if none responded."""
        return next(iter(self.answers.of(CLUSTER).values()), {})

    def samples(self, metric: str) -> Iterator[tuple[int, dict[str, str], float]]:
        """Node, labels and value of each sample of a metric."""
        for node, text in self.metrics.items():
            for line in text.splitlines():
                if line.startswith(metric) and (found := SAMPLE.match(line)) and found["name"] == metric:
                    labels = {one["name"]: one["value"] for one in LABEL.finditer(found["labels"] or "")}
                    with suppress(ValueError):
                        yield node, labels, float(found["value"])


def observation_of(answers: Answers) -> Observation:
    quorum = answers.of(QUORUM)
    rows = partial(_rows, answers)
    observation = Observation(
        quorum={one: quorum.get(one) for one in sorted({*answers.urls, *quorum})},
        damaged=rows("/v1/scrub", "damaged"),
        damaged_remote=rows("/v1/tier/damaged", "damaged"),
        behind=rows("/v1/tier/behind", "behind"),
        manifests=rows("/v1/tier/scrub", "manifests"),
        certificates=rows("/v1/certificates", "certificates"),
        versions=rows("/v1/versions", "problems"),
        unread=rows("/v1/tier/unread", "unread"),
        stores=tuple(
            {"broker": node, **response}
            for node, response in answers.of("/v1/tier/store").items()
            if not response["available"]
        ),
    )
    for node in newest_first(observation):
        documents = answers.documents[node]
        if BROKERS in documents:
            return replace(
                observation, brokers=documents[BROKERS], unhealthy=documents.get(UNHEALTHY_PARTITIONS)
            )
    return observation


def _rows(answers: Answers, path: str, key: str) -> tuple[Response, ...]:
    return tuple(
        {"broker": node, **row}
        for node, response in answers.of(path).items()
        for row in response.get(key, ())
    )


def newest_first(observation: Observation) -> list[int]:
    """The nodes that respond, the one with the newest metadata first."""
    leader = observation.leader
    applied = {
        one: int(response["applied_index"]) for one, response in observation.quorum.items() if response
    }
    return sorted(applied, key=lambda one: (one != leader, -applied[one]))
