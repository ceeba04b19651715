"""Responses of the nodes of a cluster, built by hand, and rollouts of it."""

from typing import Any

from tierlog.broker.diagnosis.evidence import BROKERS, QUORUM, UNHEALTHY_PARTITIONS, Answers
from tierlog.cli.rollout import VERSIONS, Rollout, nodes_of, plan

RESTART = "ssh {host} restart {nodes}"
URLS = {
    1: "http://voter-1.example:9644",
    2: "http://voter-2.example:9644",
    3: "http://voter-3.example:9644",
    11: "http://broker-1.example:9644",
    12: "http://broker-1.example:9645",
    21: "http://broker-2.example:9644",
}
VOTERS, ON_BROKERS = (1, 2, 3), (11, 12, 21)


def answers(*, leader: int = 1, silent: tuple[int, ...] = (), **changes: Any) -> Answers:
    """Three voters, and three brokers on two hosts. `builds`: node -> changes of GET /v1/versions. `brokers`:
    of their rows. `unhealthy`: rows of partitions."""
    builds, brokers = changes.get("builds", {}), changes.get("brokers", {})
    rows = [
        {"id": one, "fenced": False, "stopping": False, "epoch": 7, "admin_url": URLS[one]}
        | brokers.get(one, {})
        for one in ON_BROKERS
    ]
    unhealthy = changes.get("unhealthy", [])
    counts = {
        condition: sum(condition in row["conditions"] for row in unhealthy)
        for condition in ("offline", "below-min-in-sync", "under-replicated", "moving")
    }
    documents: dict[int, dict[str, Any]] = {
        node: {
            QUORUM: {
                "node_id": node,
                "cluster_id": "c",
                "role": "leader" if node == leader else "follower",
                "term": 4,
                "applied_index": 50,
                "voters": {str(one): URLS[one] for one in VOTERS},
                "learners": {},
            },
            VERSIONS: {
                "version": "1.0.0",
                "commit": "46ccc503527b",
                "format": 3,
                "started_at_ms": 1000 + node,
                "problems": [],
            }
            | builds.get(node, {}),
            BROKERS: {"brokers": rows, "assigned": [*ON_BROKERS], "partitions": {"total": 9, **counts}},
            UNHEALTHY_PARTITIONS: {"partitions": unhealthy},
        }
        for node in URLS
        if node not in silent
    }
    return Answers(urls=URLS, documents=documents)


def planned(*hosts: str, version: str | None = None, **other: Any) -> Rollout:
    found = nodes_of(answers(**other))
    return plan(hosts, found, cluster_id="c", commands=[RESTART], version=version)


def partition(number: int, replicas: list[int], in_sync: list[int], *conditions: str) -> dict[str, Any]:
    return {
        "topic": "orders",
        "partition": number,
        "replicas": replicas,
        "in_sync": in_sync,
        "min_in_sync": 2,
        "adding": [],
        "conditions": [*conditions],
    }
