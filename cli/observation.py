"""What the nodes of a cluster say of it, asked side by side over their admin APIs.

A node that is cut off from the others tells of the past, so what is said of brokers and partitions is taken
from the leader of the quorum, or else from who has applied most. For `cluster health` and the live view.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from tierlog.broker.gateway.cluster_views import UNWELL, Condition
from tierlog.cli.admin import AdminApi
from tierlog.cli.errors import CliError

TIMEOUT_S = 3.0
"""A node that is paused, or whose host is gone, says nothing at all."""

NAMED_MAX = 1000
"""Partitions that are named one by one; the others are counted."""

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """`quorum`: node -> what it says of the quorum (GET /v1/quorum), None where nothing came. `brokers`: GET
    /v1/brokers, `unwell`: GET /v1/partitions of the same node, None if nobody answered. `told_by`: that node.
    """

    urls: Mapping[int, str] = field(default_factory=dict)
    quorum: Mapping[int, Answer | None] = field(default_factory=dict)
    brokers: Answer | None = None
    unwell: Answer | None = None
    told_by: int | None = None
    damaged: tuple[Answer, ...] = ()
    """What brokers say of damage in their logs, each row with its `broker` (GET /v1/scrub)."""

    @property
    def leader(self) -> int | None:
        """Of the quorum: who says of itself that it leads, in the highest term that is told of."""
        leading = [answer for answer in self.quorum.values() if answer and answer["role"] == "leader"]
        newest = max(leading, key=lambda answer: int(answer["term"]), default=None)
        return None if newest is None else int(newest["node_id"])

    @property
    def voters(self) -> tuple[int, ...]:
        """As the leader says, or who else has heard most."""
        answers = [answer for answer in self.quorum.values() if answer]
        best = max(
            answers,
            key=lambda told: (told["node_id"] == self.leader, told["applied_index"]),
            default=None,
        )
        return tuple(sorted(int(one) for one in best["voters"])) if best else ()


def names_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Condition -> "orders-3" and others, for each condition that needs an operator, the gravest first. The
    rows are those of GET /v1/partitions."""
    found: dict[str, list[str]] = {one.value: [] for one in Condition if one in UNWELL}
    for row in rows:
        for condition in row["conditions"]:
            if condition in found:
                found[condition].append(f"{row['topic']}-{row['partition']}")
    return found


def observe(seeds: Iterable[str], *, known: Mapping[int, str] | None = None) -> Observation:
    """Asks the nodes at these URLs, and those that they name. `known`: nodes that there should be."""
    urls = dict(known or {})
    quorum: dict[int, Answer | None] = {}
    asked: set[str] = set()
    with ThreadPoolExecutor(16) as pool:
        due = [*urls.values(), *seeds]
        while due := [url for url in dict.fromkeys(due) if url and url not in asked]:
            asked.update(due)
            for url, answer in zip(due, pool.map(lambda url: _ask(url, "/v1/quorum"), due), strict=True):
                if answer is not None:
                    quorum[int(answer["node_id"])] = answer
                    urls.setdefault(int(answer["node_id"]), url)
                    named = {**answer["voters"], **answer.get("learners", {})}  # observers know of none
                    urls = {**{int(one): to for one, to in named.items() if to}, **urls}
            due = list(urls.values())
        answering = [one for one in sorted(quorum) if quorum[one] is not None]
        scrubbed = pool.map(lambda one: _ask(urls[one], "/v1/scrub"), answering)
        damaged = tuple(
            {"broker": one, **row}
            for one, answer in zip(answering, scrubbed, strict=True)
            for row in (answer or {}).get("damaged", ())
        )
    seen = Observation(
        urls=urls, quorum={one: quorum.get(one) for one in sorted({*urls, *quorum})}, damaged=damaged
    )
    return _of_partitions(seen)


def _of_partitions(seen: Observation) -> Observation:
    """With what the node that knows best says of brokers and partitions."""
    leader = seen.leader
    applied = {one: int(answer["applied_index"]) for one, answer in seen.quorum.items() if answer}
    for node in sorted(applied, key=lambda one: (one != leader, -applied[one])):
        brokers = _ask(seen.urls[node], "/v1/brokers")
        if brokers is not None:
            unwell = _ask(seen.urls[node], "/v1/partitions", condition="unwell", limit=NAMED_MAX)
            return replace(seen, brokers=brokers, unwell=unwell, told_by=node)
    return seen


def _ask(url: str, path: str, **query: object) -> Answer | None:
    try:
        answer = AdminApi(url, timeout_s=TIMEOUT_S).get(path, **query)
    except (CliError, OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None
