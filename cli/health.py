"""Whether a cluster is well, and what to do if not: judged from what its nodes say, nothing else.

`judge` asks nobody: `cluster health` and tests give it an observation.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from tierlog.cli.cluster_processes import ProcessState
from tierlog.cli.observation import Observation
from tierlog.config.node import BROKER, CONTROLLER

NAMED_MAX = 5
"""Partitions named in a sentence; the others are counted."""

NOT_LOCAL: Mapping[int, ProcessState] = {}

Roles = Mapping[int, Collection[str]]
"""Node -> its process.roles; one that is not named has both."""

BOTH = (BROKER, CONTROLLER)


class Status(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"  # all that is asked is done, but less may fail than should
    UNAVAILABLE = "unavailable"  # something that clients or operators ask is not done


class Problem(NamedTuple):
    """`what` is wrong, as a sentence, and what to do `next`."""

    status: Status
    what: str
    next: str


@dataclass(frozen=True, slots=True)
class Health:
    problems: tuple[Problem, ...]

    @property
    def status(self) -> Status:
        order = list(Status)
        return max((problem.status for problem in self.problems), key=order.index, default=Status.HEALTHY)


def judge(
    seen: Observation, processes: Mapping[int, ProcessState] = NOT_LOCAL, roles: Roles | None = None
) -> Health:
    """The gravest problems first. `processes`: of the nodes, where they run on this machine, and what `roles`
    they have there."""
    roles = roles or {}
    problems = [
        *_quorum(seen, processes, roles),
        *_nodes(seen, processes, roles),
        *_partitions(seen),
        *_damaged(seen),
    ]
    order = list(Status)
    return Health(tuple(sorted(problems, key=lambda problem: -order.index(problem.status))))


def _quorum(seen: Observation, processes: Mapping[int, ProcessState], roles: Roles) -> list[Problem]:
    clusters = {str(answer["cluster_id"]) for answer in seen.quorum.values() if answer}
    if len(clusters) > 1:
        what = f"the nodes are of several clusters: {', '.join(sorted(clusters))}"
        how = "Compare cluster.id and the addresses in controller.quorum.voters of each node."
        return [Problem(Status.UNAVAILABLE, what, how)]
    if seen.leader is not None:
        return _two_voters(seen)
    voters = seen.voters or tuple(one for one in sorted(processes) if CONTROLLER in roles.get(one, BOTH))
    answering = [one for one in voters if seen.quorum.get(one)]
    majority = len(voters) // 2 + 1
    what = f"the quorum has no leader: {len(answering)} of {len(voters)} voters answer, {majority} are needed"
    if len(answering) >= majority:
        how = "An election takes a second or two: ask again. If it stays so, voters do not reach each other."
    else:
        how = "Start enough of the voters that do not answer: " + _list(set(voters) - set(answering))
    return [Problem(Status.UNAVAILABLE, what, how)]


def _two_voters(seen: Observation) -> list[Problem]:
    """One voter is a choice, as in `tierlog dev`. Two are worse: the failure of either stops both."""
    if len(seen.voters) != 2:
        return []
    what = "the quorum has two voters: it stops when either of them fails"
    how = "`tierlog quorum add NODE URL` makes a third node a voter."
    return [Problem(Status.DEGRADED, what, how)]


def _nodes(seen: Observation, processes: Mapping[int, ProcessState], roles: Roles) -> list[Problem]:
    """One problem for each node, with all its signs."""
    registered = {int(broker["id"]): broker for broker in (seen.brokers or {}).get("brokers", ())}
    assigned = {int(one) for one in (seen.brokers or {}).get("assigned", ())}
    problems = []
    for node in sorted({*seen.quorum, *registered, *assigned, *processes, *seen.voters}):
        state = processes.get(node)
        is_member = node in registered or node in assigned or node in seen.voters
        if state is ProcessState.DOWN and seen.brokers is not None and not is_member:
            continue  # decommissioned: its files are all that is left of it
        wanted = node in assigned or (state is ProcessState.UP and BROKER in roles.get(node, BOTH))
        signs = _signs(node, seen, registered.get(node), wanted=wanted)
        if state in (ProcessState.DOWN, ProcessState.PAUSED):
            signs.insert(0, f"its process is {state}")
        if signs:
            what = f"node {node}: {'; '.join(signs)}"
            votes = node in seen.voters and node not in assigned
            how = _mend(node, state, registered.get(node), votes=votes)
            problems.append(Problem(Status.DEGRADED, what, how))
    return problems


def _signs(node: int, seen: Observation, broker: Mapping[str, Any] | None, *, wanted: bool) -> list[str]:
    signs = []
    if node in seen.quorum and seen.quorum[node] is None:
        signs.append("it does not answer" + (", and it is a voter" if node in seen.voters else ""))
    if broker is None:
        if wanted and seen.brokers is not None:
            signs.append("no such broker is registered")
    elif broker["stopping"]:
        signs.append("its broker is stopping" + (", and fenced" if broker["fenced"] else ""))
    elif broker["fenced"]:
        signs.append("its broker is fenced: the controller does not hear of it")
    return signs


def _mend(node: int, state: ProcessState | None, broker: Mapping[str, Any] | None, *, votes: bool) -> str:
    """`votes`: if it is no broker, it is a voter, and no partition asks for it."""
    if state is ProcessState.PAUSED:
        return f"`tierlog cluster resume {node}`"
    if state is ProcessState.DOWN:
        return f"`tierlog cluster start {node}`"
    if state is ProcessState.UP:
        return (
            f"It may be starting: ask again. If it stays so, look at node-{node}/broker.log of the cluster."
        )
    if broker is None and votes:
        return (
            f"Start the process of node {node}; its log says why it ended. If its disk is gone for good: "
            f"`tierlog quorum remove {node}`, then add one in its place."
        )
    if broker is None:
        return f"Start node {node}, or move its partitions: `tierlog partition move`."
    if broker["stopping"]:
        return f"Start node {node} again, or let it go: `tierlog broker decommission {node}`."
    return (
        f"Start the process of node {node}; its log says why it ended. If it is gone for good: "
        f"`tierlog broker decommission {node}`."
    )


def _partitions(seen: Observation) -> list[Problem]:
    if seen.brokers is None:
        return []
    counts = seen.brokers["partitions"]
    offline, below = counts["offline"], counts["below-min-in-sync"]
    behind = counts["under-replicated"]
    problems = []
    if offline:
        what = f"{_count(offline)} without a leader{_names(seen, 'offline')}"
        how = (
            "Start the brokers that hold them (`tierlog partition list --offline`). If those are lost, so is "
            "what only they had: with unclean.leader.election.enable=true on the topic, "
            "`tierlog partition elect --unclean` gives the rest a leader."
        )
        problems.append(Problem(Status.UNAVAILABLE, what, how))
    if below:
        what = f"{_count(below)} below min.insync.replicas{_names(seen, 'below-min-in-sync')}"
        how = "acks=all is refused there until more replicas are in sync: start the brokers that are away."
        problems.append(Problem(Status.UNAVAILABLE, what, how))
    if behind:
        what = f"{_count(behind)} under-replicated{_names(seen, 'under-replicated')}"
        how = (
            "They catch up by themselves once their brokers run: `tierlog partition list --under-replicated`."
        )
        problems.append(Problem(Status.DEGRADED, what, how))
    return problems


def _damaged(seen: Observation) -> list[Problem]:
    """A replica that can repair itself does within moments, so who is named here mostly cannot."""
    if not seen.damaged:
        return []
    found = sorted({f"{row['topic']}-{row['partition']} of broker {row['broker']}" for row in seen.damaged})
    some = ", ".join(found[:NAMED_MAX]) + (" and others" if len(found) > NAMED_MAX else "")
    how = (
        "It repairs itself once another replica serves the range: start the brokers that hold one. If there "
        "is none and never will be, docs/runbooks/damaged-log.md says what can be saved."
    )
    what = f"a part of these logs is damaged, and refused to readers: {some}"
    return [Problem(Status.UNAVAILABLE, what, how)]


def _names(seen: Observation, condition: str) -> str:
    """The first of them: ": orders-0, orders-3 and others"."""
    rows = (seen.unwell or {}).get("partitions", ())
    found = [f"{row['topic']}-{row['partition']}" for row in rows if condition in row["conditions"]]
    if not found:
        return ""
    total = (seen.brokers or {})["partitions"][condition]
    return ": " + ", ".join(found[:NAMED_MAX]) + (" and others" if total > len(found[:NAMED_MAX]) else "")


def _count(partitions: int) -> str:
    return f"{partitions:,} partition" + ("" if partitions == 1 else "s")


def _list(nodes: set[int]) -> str:
    return ", ".join(f"node {one}" for one in sorted(nodes)) + "."
