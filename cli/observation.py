"""Observation of a cluster: the responses of all nodes' admin APIs, requested in parallel.

Used by `cluster health`, the live view and `doctor`.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from tierlog.base.addresses import is_loopback
from tierlog.broker.diagnosis.evidence import (
    BROKERS,
    HEALTH_PATHS,
    QUORUM,
    UNHEALTHY_PARTITIONS,
    Answers,
    Observation,
    Response,
    newest_first,
    observation_of,
)
from tierlog.broker.gateway.cluster_views import UNHEALTHY, Condition
from tierlog.cli.admin import AdminApi
from tierlog.cli.errors import CliError

TIMEOUT_S = 3.0
"""A paused node, or one whose host is gone, never responds."""

DEADLINE_S = 15.0
"""Time for one request to each of many nodes. A server that sends a byte now and then keeps each timeout from
passing."""

NODES_MAX = 1_000
"""Nodes that are asked: a server that is not a node may name further ones without end."""

THREADS = 32
SOURCES_MAX = 3
"""Nodes that are asked, one after the other, for what each of them knows."""

BROKERS_ONLY, NOT_FOUND = 409, 404
"""Statuses of nodes that are only controllers, and of nodes of an earlier version."""

PARTITIONS_MAX = 1000
"""Maximum number of unhealthy partitions that are requested."""

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


class _Broker(msgspec.Struct):
    id: int
    admin_url: str | None = None


class _Brokers(msgspec.Struct):
    """The part of GET /v1/brokers that has addresses."""

    brokers: list[_Broker]


def partition_names(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Condition -> names such as "orders-3", for each condition that needs an operator, the most severe
    first. `rows`: the rows of GET /v1/partitions."""
    found: dict[str, list[str]] = {one.value: [] for one in Condition if one in UNHEALTHY}
    for row in rows:
        for condition in row["conditions"]:
            if condition in found:
                found[condition].append(f"{row['topic']}-{row['partition']}")
    return found


def observe(seeds: Iterable[str]) -> Observation:
    """Query the nodes at these URLs, the members of the quorum and the brokers that those report."""
    return observation_of(ask(seeds, HEALTH_PATHS))


def ask(seeds: Iterable[str], paths: Sequence[str]) -> Answers:
    """The responses of all nodes to these paths, and those of one node about brokers and partitions."""
    urls, documents = _members(seeds)
    unread: list[str] = []

    def read(one: tuple[int, str], **query: object) -> Response | None:
        return _ask(urls[one[0]], one[1], partial(_note, unread, one), **query)

    def on_late(one: tuple[int, str]) -> None:
        unread.append(f"{one[1]} of node {one[0]}: it did not respond in time")

    answers = Answers(urls=urls, documents=documents, unread=unread)
    unhealthy = partial(read, condition="unhealthy", limit=PARTITIONS_MAX)
    for node in newest_first(Observation(quorum=answers.of(QUORUM)))[:SOURCES_MAX]:
        if brokers := in_parallel(read, [(node, BROKERS)], on_late=on_late)[0]:
            documents[node][BROKERS] = brokers
            if rows := in_parallel(unhealthy, [(node, "/v1/partitions")], on_late=on_late)[0]:
                documents[node][UNHEALTHY_PARTITIONS] = rows
            _add_observers(brokers, urls, documents)
            break
    wanted = [(node, path) for node in sorted(documents) for path in paths]
    found = in_parallel(read, wanted, on_late=on_late)
    for (node, path), response in zip(wanted, found, strict=True):
        if response is not None:
            documents[node][path] = response
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


def _add_observers(
    brokers: Response, urls: dict[int, str], documents: dict[int, dict[str, Response]]
) -> None:
    """Add the registered brokers that are no members of the quorum, and GET /v1/quorum of each that responds.
    `brokers`: GET /v1/brokers of one node. The default of admin.listener is an address of the broker's own
    machine: one that does not respond there may be well."""
    try:
        rows = msgspec.convert(brokers, _Brokers).brokers[:NODES_MAX]
    except msgspec.ValidationError:
        return
    others = {one.id: one.admin_url for one in rows if one.admin_url and one.id not in urls}
    for (node, url), response in zip(
        others.items(), in_parallel(_ask_quorum, [*others.values()]), strict=True
    ):
        responds = response is not None and response[1].node_id == node
        if responds or not is_loopback(urlsplit(url).hostname or ""):
            urls[node] = url
        if response is not None and responds:
            documents.setdefault(node, {QUORUM: response[0]})


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


def _ask_quorum(url: str) -> tuple[Response, _Quorum] | None:
    """None also if a server that is not a node responds."""
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
