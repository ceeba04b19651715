"""Observation of a cluster: the responses of all nodes' admin APIs, requested in parallel.

A node that is cut off from the others has stale metadata. Brokers and partitions are therefore taken from the
leader of the quorum, or else from the node with the highest applied index. Used by `cluster health`, the live
view and `doctor`.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import msgspec

from tierlog.broker.gateway.cluster_views import UNHEALTHY, Condition
from tierlog.cli.admin import AdminApi
from tierlog.cli.errors import CliError

TIMEOUT_S = 3.0
"""A paused node, or one whose host is gone, never responds."""

DEADLINE_S = 15.0
"""Time for one request to each of many nodes. A server that sends a byte now and then keeps each timeout from
passing."""

NODES_MAX = 1_000
"""Nodes that are asked: a server that is no node may name further ones without end."""

THREADS = 32
SOURCES_MAX = 3
"""Nodes that are asked, one after the other, for what each of them knows."""

BROKERS_ONLY, NOT_FOUND = 409, 404
"""Statuses of nodes that are only controllers, and of nodes of an earlier version."""

PARTITIONS_MAX = 1000
"""Maximum number of unhealthy partitions that are requested."""

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
T = TypeVar("T")
R = TypeVar("R")


class _Quorum(msgspec.Struct):
    """The part of GET /v1/quorum that observations need."""

    node_id: int
    cluster_id: str
    role: str
    applied_index: int
    voters: dict[int, str]
    learners: dict[int, str] = {}
    term: int = 0


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


def partition_names(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Condition -> names such as "orders-3", for each condition that needs an operator, the most severe
    first. `rows`: the rows of GET /v1/partitions."""
    found: dict[str, list[str]] = {one.value: [] for one in Condition if one in UNHEALTHY}
    for row in rows:
        for condition in row["conditions"]:
            if condition in found:
                found[condition].append(f"{row['topic']}-{row['partition']}")
    return found


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


def observe(seeds: Iterable[str]) -> Observation:
    """Query the nodes at these URLs, and the nodes that those report as members of the quorum."""
    return observation_of(ask(seeds, HEALTH_PATHS))


def ask(seeds: Iterable[str], paths: Sequence[str]) -> Answers:
    """The responses of all nodes to these paths, and those of one node about brokers and partitions."""
    urls, documents = _members(seeds)
    unread: list[str] = []

    def read(one: tuple[int, str], **query: object) -> Response | None:
        return _ask(urls[one[0]], one[1], partial(_note, unread, one), **query)

    def on_late(one: tuple[int, str]) -> None:
        unread.append(f"{one[1]} of node {one[0]}: it did not respond in time")

    wanted = [(node, path) for node in sorted(documents) for path in paths]
    found = in_parallel(read, wanted, on_late=on_late)
    for (node, path), response in zip(wanted, found, strict=True):
        if response is not None:
            documents[node][path] = response
    answers = Answers(urls=urls, documents=documents, unread=unread)
    unhealthy = partial(read, condition="unhealthy", limit=PARTITIONS_MAX)
    for node in _newest_first(Observation(quorum=answers.of(QUORUM)))[:SOURCES_MAX]:
        if brokers := in_parallel(read, [(node, BROKERS)], on_late=on_late)[0]:
            documents[node][BROKERS] = brokers
            if rows := in_parallel(unhealthy, [(node, "/v1/partitions")], on_late=on_late)[0]:
                documents[node][UNHEALTHY_PARTITIONS] = rows
            break
    return answers


def _members(seeds: Iterable[str]) -> tuple[dict[int, str], dict[int, dict[str, Response]]]:
    """URLs of the nodes that those at `seeds` and their members know, and GET /v1/quorum of each that
    responds."""
    urls: dict[int, str] = {}
    documents: dict[int, dict[str, Response]] = {}
    queried: set[str] = set()
    pending, deadline = list(seeds), time.monotonic() + 2 * DEADLINE_S
    while pending := [url for url in dict.fromkeys(pending) if url and url not in queried]:
        if time.monotonic() > deadline or len(queried) > NODES_MAX:
            break
        queried.update(pending)
        for url, response in zip(pending, in_parallel(_ask_quorum, pending), strict=True):
            if response is not None:
                document, quorum = response
                documents[quorum.node_id] = {QUORUM: document}
                urls.setdefault(quorum.node_id, url)
                # observers report no learners
                members = {**quorum.voters, **quorum.learners}
                urls = {**{one: to for one, to in members.items() if to}, **urls}
        pending = list(urls.values())
    return urls, documents


def in_parallel(
    work: Callable[[T], R | None],
    items: Sequence[T],
    *,
    deadline_s: float | None = None,
    on_late: Callable[[T], None] = lambda _: None,
) -> list[R | None]:
    """The results of the work for each item; None if it has not ended at the deadline (default: DEADLINE_S).
    Threads that still work then do not keep the process from ending."""
    results: list[Future[R | None]] = [Future() for _ in items]
    queue: SimpleQueue[tuple[Future[R | None], T]] = SimpleQueue()
    for one in zip(results, items, strict=True):
        queue.put(one)

    def run() -> None:
        with suppress(Empty):
            while True:
                result, item = queue.get_nowait()
                try:
                    result.set_result(work(item))
                except BaseException as failure:
                    result.set_exception(failure)

    for _ in range(min(THREADS, len(items))):
        threading.Thread(target=run, daemon=True).start()
    done, _ = wait(results, DEADLINE_S if deadline_s is None else deadline_s)
    for result, item in zip(results, items, strict=True):
        if result not in done:
            on_late(item)
    return [one.result() if one in done else None for one in results]


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
    for node in _newest_first(observation):
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


def _newest_first(observation: Observation) -> list[int]:
    """The nodes that respond, the one with the newest metadata first."""
    leader = observation.leader
    applied = {
        one: int(response["applied_index"]) for one, response in observation.quorum.items() if response
    }
    return sorted(applied, key=lambda one: (one != leader, -applied[one]))


def _ask_quorum(url: str) -> tuple[Response, _Quorum] | None:
    """None also if what responds is no node of a cluster."""
    response = _ask(url, QUORUM)
    try:
        return None if response is None else (response, msgspec.convert(response, _Quorum, str_keys=True))
    except msgspec.ValidationError:
        return None


def _ask(
    url: str, path: str, on_failure: Callable[[CliError], None] = lambda _: None, **query: object
) -> Response | None:
    try:
        response = AdminApi(url, timeout_s=TIMEOUT_S).get(path, **query)
    except CliError as failure:
        on_failure(failure)
        return None
    return response if isinstance(response, dict) else None


def _note(unread: list[str], one: tuple[int, str], failure: CliError) -> None:
    if failure.status not in (BROKERS_ONLY, NOT_FOUND):
        unread.append(f"{one[1]} of node {one[0]}: {failure.message}")
