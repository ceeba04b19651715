"""Observation of a cluster: the responses of all nodes' admin APIs, requested in parallel.

A node that is cut off from the others has stale metadata. Brokers and partitions are therefore taken from the
leader of the quorum, or else from the node with the highest applied index. Used by `cluster health` and the
live view.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from tierlog.broker.gateway.cluster_views import UNHEALTHY, Condition
from tierlog.cli.admin import AdminApi
from tierlog.cli.errors import CliError

TIMEOUT_S = 3.0
"""A paused node, or one whose host is gone, never responds."""

PARTITIONS_MAX = 1000
"""Maximum number of unhealthy partitions that are requested."""

Response = dict[str, Any]


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


def observe(seeds: Iterable[str]) -> Observation:
    """Query the nodes at these URLs, and the nodes that those report as members of the quorum."""
    urls: dict[int, str] = {}
    quorum: dict[int, Response | None] = {}
    queried: set[str] = set()
    with ThreadPoolExecutor(16) as pool:
        pending = list(seeds)
        while pending := [url for url in dict.fromkeys(pending) if url and url not in queried]:
            queried.update(pending)
            responses = pool.map(lambda url: _ask(url, "/v1/quorum"), pending)
            for url, response in zip(pending, responses, strict=True):
                if response is not None:
                    quorum[int(response["node_id"])] = response
                    urls.setdefault(int(response["node_id"]), url)
                    # observers report no learners
                    members = {**response["voters"], **response.get("learners", {})}
                    urls = {**{int(one): to for one, to in members.items() if to}, **urls}
            pending = list(urls.values())
        responding = [one for one in sorted(quorum) if quorum[one] is not None]
        local, remote, behind, unread, stores, scrubs, certificates, versions = (
            pool.map(lambda one, path=path: _ask(urls[one], path), responding)
            for path in (
                "/v1/scrub",
                "/v1/tier/damaged",
                "/v1/tier/behind",
                "/v1/tier/unread",
                "/v1/tier/store",
                "/v1/tier/scrub",
                "/v1/certificates",
                "/v1/versions",
            )
        )
        observation = Observation(
            quorum={one: quorum.get(one) for one in sorted({*urls, *quorum})},
            damaged=_rows(responding, local, "damaged"),
            damaged_remote=_rows(responding, remote, "damaged"),
            behind=_rows(responding, behind, "behind"),
            manifests=_rows(responding, scrubs, "manifests"),
            certificates=_rows(responding, certificates, "certificates"),
            versions=_rows(responding, versions, "problems"),
            unread=_rows(responding, unread, "unread"),
            stores=tuple(
                {"broker": node, **response}
                for node, response in zip(responding, stores, strict=True)
                if response and not response["available"]
            ),
        )
    return _with_partitions(observation, urls)


def _rows(nodes: Iterable[int], responses: Iterable[Response | None], key: str) -> tuple[Response, ...]:
    return tuple(
        {"broker": node, **row}
        for node, response in zip(nodes, responses, strict=True)
        for row in (response or {}).get(key, ())
    )


def _with_partitions(observation: Observation, urls: Mapping[int, str]) -> Observation:
    """Add brokers and partitions, from the node with the newest metadata that responds."""
    leader = observation.leader
    applied = {
        one: int(response["applied_index"]) for one, response in observation.quorum.items() if response
    }
    for node in sorted(applied, key=lambda one: (one != leader, -applied[one])):
        brokers = _ask(urls[node], "/v1/brokers")
        if brokers is not None:
            unhealthy = _ask(urls[node], "/v1/partitions", condition="unhealthy", limit=PARTITIONS_MAX)
            return replace(observation, brokers=brokers, unhealthy=unhealthy)
    return observation


def _ask(url: str, path: str, **query: object) -> Response | None:
    try:
        response = AdminApi(url, timeout_s=TIMEOUT_S).get(path, **query)
    except (CliError, OSError, ValueError):
        return None
    return response if isinstance(response, dict) else None
