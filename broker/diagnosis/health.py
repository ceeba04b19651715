"""Cluster health: derives problems, and what to do about them, from an observation of the nodes.

Pure: `cluster health`, the live view and tests pass the observation in.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from tierlog.base.text import counted, listed
from tierlog.broker.diagnosis.evidence import Observation, ProcessState
from tierlog.config.node import BROKER, CONTROLLER

NAMED_MAX = 5
"""Partitions that a message names."""

EXPIRES_SOON_DAYS = 21
"""Days before its expiry from which a certificate is reported. Shorter than the 30 days in which ACME clients
renew certificates."""

NOT_LOCAL: Mapping[int, ProcessState] = {}

Roles = Mapping[int, Collection[str]]
"""Node -> its process.roles; a missing node has both."""

BOTH = (BROKER, CONTROLLER)


class Status(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"  # everything is served, with less redundancy than configured
    UNAVAILABLE = "unavailable"  # some requests of clients or operators are not served


class Problem(NamedTuple):
    """`what` is wrong, and what to do `next`."""

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


def assess(
    seen: Observation, processes: Mapping[int, ProcessState] = NOT_LOCAL, roles: Roles | None = None
) -> Health:
    """Problems, the most severe first. `processes` and `roles`: of the nodes of a local cluster."""
    problems = [problem for _, problem in assess_by_rule(seen, processes, roles)]
    order = list(Status)
    return Health(tuple(sorted(problems, key=lambda problem: -order.index(problem.status))))


def assess_by_rule(
    seen: Observation, processes: Mapping[int, ProcessState] = NOT_LOCAL, roles: Roles | None = None
) -> list[tuple[str, Problem]]:
    """The problems, each with the name of the rule that found it."""
    found = {
        "quorum": _quorum(seen, processes, roles or {}),
        "node": _nodes(seen, processes, roles or {}),
        "partitions": _partitions(seen),
        "damaged-log": _damaged(seen),
        "damaged-object": _damaged_remote(seen),
        "manifest": _manifests(seen),
        "unread-manifest": _unread(seen),
        "object-store": _stores(seen),
        "uploads-late": _behind(seen),
        "certificate": _certificates(seen),
        "versions": _versions(seen),
    }
    return [(rule, problem) for rule, problems in found.items() for problem in problems]


def _quorum(seen: Observation, processes: Mapping[int, ProcessState], roles: Roles) -> list[Problem]:
    clusters = {str(response["cluster_id"]) for response in seen.quorum.values() if response}
    if len(clusters) > 1:
        what = f"the nodes belong to different clusters: {', '.join(sorted(clusters))}"
        how = "Compare cluster.id and controller.quorum.voters of all nodes."
        return [Problem(Status.UNAVAILABLE, what, how)]
    if seen.leader is not None:
        return _two_voters(seen)
    voters = seen.voters or tuple(one for one in sorted(processes) if CONTROLLER in roles.get(one, BOTH))
    responding = [one for one in voters if seen.quorum.get(one)]
    majority = len(voters) // 2 + 1
    what = (
        f"the quorum has no leader: {len(responding)} of {len(voters)} voters respond, {majority} are needed"
    )
    if len(responding) >= majority:
        how = "An election takes one or two seconds. If this persists, the voters cannot reach each other."
    else:
        silent = _list(set(voters) - set(responding))
        how = (
            f"Start enough of the voters that do not respond: {silent} If their hosts are lost, see "
            "docs/runbooks/lost-majority.md."
        )
    return [Problem(Status.UNAVAILABLE, what, how)]


def _two_voters(seen: Observation) -> list[Problem]:
    """A single voter is intended, as in `tierlog dev`. Two are less available than one: both must run."""
    if len(seen.voters) != 2:
        return []
    what = "the quorum has two voters, so it stops when one of them fails"
    how = "Add a third voter with `tierlog quorum add NODE URL`."
    return [Problem(Status.DEGRADED, what, how)]


def _nodes(seen: Observation, processes: Mapping[int, ProcessState], roles: Roles) -> list[Problem]:
    """One problem for each unhealthy node, with all its symptoms."""
    registered = seen.registered
    assigned = {int(one) for one in (seen.brokers or {}).get("assigned", ())}
    problems = []
    for node in sorted({*seen.quorum, *registered, *assigned, *processes, *seen.voters}):
        state = processes.get(node)
        is_member = node in registered or node in assigned or node in seen.voters
        if state is ProcessState.DOWN and seen.brokers is not None and not is_member:
            continue  # decommissioned: only its files are left
        wanted = node in assigned or (state is ProcessState.UP and BROKER in roles.get(node, BOTH))
        symptoms = _symptoms(node, seen, registered.get(node), wanted=wanted)
        if state in (ProcessState.DOWN, ProcessState.PAUSED):
            symptoms.insert(0, f"its process is {state}")
        if symptoms:
            what = f"node {node}: {'; '.join(symptoms)}"
            how = _remedy(
                node,
                state,
                registered.get(node),
                is_voter=node in seen.voters,
                has_replicas=None if seen.brokers is None else node in assigned,
                responds=seen.quorum.get(node) is not None,
                has_leader=seen.leader is not None,
            )
            problems.append(Problem(Status.DEGRADED, what, how))
    return problems


def _symptoms(node: int, seen: Observation, broker: Mapping[str, Any] | None, *, wanted: bool) -> list[str]:
    symptoms = []
    if node in seen.quorum and seen.quorum[node] is None:
        symptoms.append("it does not respond" + (", and it is a voter" if node in seen.voters else ""))
    if broker is None:
        if wanted and seen.brokers is not None:
            symptoms.append("its broker is not registered")
    elif broker["stopping"]:
        symptoms.append("its broker is shutting down" + (" and fenced" if broker["fenced"] else ""))
    elif broker["fenced"]:
        symptoms.append("its broker is fenced: the controller receives no heartbeats from it")
    return symptoms


def _remedy(
    node: int,
    state: ProcessState | None,
    broker: Mapping[str, Any] | None,
    *,
    is_voter: bool,
    has_replicas: bool | None,
    responds: bool,
    has_leader: bool,
) -> str:
    """`broker`: its registration, or None. `has_replicas`: None if that is unknown. `has_leader`: whether the
    quorum has one, without which nothing can be removed or moved. To leave the cluster, a broker takes the
    steps of docs/howto/cluster.md, in that order."""
    leave_quorum = f"`tierlog quorum remove {node}`, then " if is_voter else ""
    is_leaving = broker is not None and broker["stopping"]
    if state is ProcessState.PAUSED:
        return f"Run `tierlog cluster resume {node}`."
    if not has_leader and (is_leaving or state is not ProcessState.UP):
        return _remedy_without_leader(node, state, responds=responds or state is ProcessState.UP)
    if state is ProcessState.DOWN:
        return _remedy_of_stopped_process(
            node, broker, leave_quorum, is_leaving=is_leaving, has_replicas=has_replicas
        )
    if is_leaving and (state is ProcessState.UP or responds):
        return _remedy_of_stopping_broker(node, state, leave_quorum, has_replicas=has_replicas)
    if state is ProcessState.UP:
        return f"The node may be starting. If this persists, see node-{node}/broker.log of the cluster."
    if broker is None and is_voter and not has_replicas:
        return (
            f"Start node {node}; its log says why it ended. If its disk is lost, run "
            f"`tierlog quorum remove {node}` and add a replacement."
        )
    if broker is None:
        return f"Start node {node}, or move its partitions with `tierlog partition move`."
    if is_leaving:
        return (
            f"Start node {node} again, or remove it with {leave_quorum}`tierlog broker decommission {node}`."
        )
    return (
        f"Start node {node}; its log says why it ended. If it is lost for good, run "
        f"{leave_quorum}`tierlog broker decommission {node}`."
    )


def _remedy_without_leader(node: int, state: ProcessState | None, *, responds: bool) -> str:
    """No command that changes the cluster succeeds."""
    if state is ProcessState.DOWN:
        return f"Run `tierlog cluster start {node}`."
    if responds:
        return "Nothing can change before the quorum has a leader: see docs/runbooks/lost-majority.md."
    return (
        f"Start node {node}; its log says why it ended. If its host is lost, see "
        "docs/runbooks/lost-majority.md: no node can be removed before the quorum has a leader."
    )


def _remedy_of_stopping_broker(
    node: int, state: ProcessState | None, leave_quorum: str, *, has_replicas: bool | None
) -> str:
    """For a broker that leads nothing and runs: a rollout or a `broker decommission` has not gone further."""
    is_local = state is ProcessState.UP
    stop = f"`tierlog cluster stop {node}`" if is_local else "stop its process"
    restart = f"restart it ({stop}, then `tierlog cluster start {node}`)" if is_local else "restart it"
    if has_replicas is False:
        return (
            f"If it is to leave the cluster, run {leave_quorum}{stop}, then "
            f"`tierlog broker decommission {node}`. If it is to stay, {restart}: it leads nothing before."
        )
    return (
        f"If it does not end by itself, {restart}: it leads nothing before. If it is to leave the cluster, "
        f"`tierlog broker decommission {node}` moves its replicas first, and names the next step."
    )


def _remedy_of_stopped_process(
    node: int,
    broker: Mapping[str, Any] | None,
    leave_quorum: str,
    *,
    is_leaving: bool,
    has_replicas: bool | None,
) -> str:
    """For a node of the local cluster whose process is down."""
    if broker is None and has_replicas:  # as after `tierlog broker decommission --force`
        return (
            "Move its partitions to other brokers with `tierlog partition move`, or run "
            f"`tierlog cluster start {node}` to add it again."
        )
    if broker is None and leave_quorum and has_replicas is False:
        return (
            f"Run `tierlog cluster start {node}`, or `tierlog quorum remove {node}` if it is gone for good."
        )
    if is_leaving and has_replicas is False:
        return (
            f"Run {leave_quorum}`tierlog broker decommission {node}` if it is to leave the cluster, or "
            f"`tierlog cluster start {node}` to keep it."
        )
    return f"Run `tierlog cluster start {node}`."


def _partitions(seen: Observation) -> list[Problem]:
    if seen.brokers is None:
        return []
    counts = seen.brokers["partitions"]
    offline, below = counts["offline"], counts["below-min-in-sync"]
    behind = counts["under-replicated"]
    problems = []
    if offline:
        what = f"{counted(offline, 'partition')} without a leader{_names(seen, 'offline')}"
        how = (
            "Start the brokers that hold them (`tierlog partition list --offline`). If those brokers are "
            "lost, set unclean.leader.election.enable=true on the topic and run "
            "`tierlog partition elect --unclean`: records that only they had are lost."
        )
        if seen.leader is None:
            how = "Partitions can have leaders again once the quorum has one."
        problems.append(Problem(Status.UNAVAILABLE, what, how))
    if below:
        what = f"{counted(below, 'partition')} below min.insync.replicas{_names(seen, 'below-min-in-sync')}"
        how = (
            "Produce requests with acks=all fail until more replicas are in sync: "
            "start the brokers that are down."
        )
        problems.append(Problem(Status.UNAVAILABLE, what, how))
    if behind:
        what = f"{counted(behind, 'partition')} under-replicated{_names(seen, 'under-replicated')}"
        how = "Replicas catch up once their brokers run: see `tierlog partition list --under-replicated`."
        problems.append(Problem(Status.DEGRADED, what, how))
    return problems


def _damaged(seen: Observation) -> list[Problem]:
    """A replica that can repair itself does so at once, so most of those listed cannot."""
    if not seen.damaged:
        return []
    found = sorted({f"{row['topic']}-{row['partition']} of broker {row['broker']}" for row in seen.damaged})
    some = ", ".join(found[:NAMED_MAX]) + (" and others" if len(found) > NAMED_MAX else "")
    how = (
        "A damaged log repairs itself once another replica serves the damaged offsets: start the brokers "
        "that have one. If no other replica exists, see docs/runbooks/damaged-log.md."
    )
    what = f"damaged logs, whose damaged offsets cannot be read: {some}"
    return [Problem(Status.UNAVAILABLE, what, how)]


def _damaged_remote(seen: Observation) -> list[Problem]:
    """Several brokers may have read the same object. Brokers of earlier versions do not report missing
    ones."""
    how = "Restore the objects, or let consumers seek past them: see docs/runbooks/damaged-object.md."
    problems = []
    for state, is_missing in (("damaged objects", False), ("missing objects", True)):
        found = sorted(
            {
                f"{row['topic']}-{row['partition']} offsets {row['first_offset']} to {row['end_offset'] - 1} "
                f"({row['object']})"
                for row in seen.damaged_remote
                if bool(row.get("missing")) is is_missing
            }
        )
        if found:
            some = ", ".join(found[:NAMED_MAX]) + (" and others" if len(found) > NAMED_MAX else "")
            what = f"{state} in the object store, whose offsets cannot be read: {some}"
            problems.append(Problem(Status.UNAVAILABLE, what, how))
    return problems


def _manifests(seen: Observation) -> list[Problem]:
    """Clients are served from the quorum's manifest; readers of the bucket are not."""
    if not seen.manifests:
        return []
    found = sorted({f"{row['object']} ({row['fault']})" for row in seen.manifests})
    some = ", ".join(found[:NAMED_MAX]) + (" and others" if len(found) > NAMED_MAX else "")
    what = f"manifests in the object store were wrong in the last check, and are written again: {some}"
    how = (
        "Find what changes the bucket: docs/runbooks/damaged-object.md. `POST /v1/tier/scrub` begins another "
        "check."
    )
    return [Problem(Status.DEGRADED, what, how)]


def _unread(seen: Observation) -> list[Problem]:
    if not seen.unread:
        return []
    found = [f"{row['topic']}-{row['partition']}: {row['error'] or 'not read yet'}" for row in seen.unread]
    some = "; ".join(found[:NAMED_MAX]) + (" and others" if len(found) > NAMED_MAX else "")
    what = f"partitions whose manifest in the object store was not read since the quorum's recovery: {some}"
    how = "They have a leader once it is read: see docs/runbooks/lost-majority-for-good.md."
    return [Problem(Status.UNAVAILABLE, what, how)]


def _stores(seen: Observation) -> list[Problem]:
    """Producers, and consumers of local offsets, do not notice an outage."""
    how = (
        "Check the store, its address, the network and the credentials: docs/runbooks/bucket-down.md. "
        "Uploads continue by themselves once it responds."
    )
    problems = []
    for state, what in (("open", "is unavailable"), ("refused", "lacks what tierlog needs")):
        rows = [row for row in seen.stores if row["state"] == state]
        if rows:
            brokers = listed([str(row["broker"]) for row in rows])
            some = f"broker{'s' if len(rows) > 1 else ''} {brokers}"
            problems.append(
                Problem(Status.DEGRADED, f"the object store {what} for {some}: {rows[0]['error']}", how)
            )
    return problems


def _behind(seen: Observation) -> list[Problem]:
    """Everything is served, but the loss of all brokers would lose more than allowed."""
    if not seen.behind:
        return []
    oldest = sorted(seen.behind, key=lambda row: -int(row["copy_lag_ms"]))
    found = [f"{row['topic']}-{row['partition']} by {row['copy_lag_ms'] // 1000:,} s" for row in oldest]
    some = ", ".join(found[:NAMED_MAX]) + (" and others" if len(found) > NAMED_MAX else "")
    what = f"records are not uploaded within remote.log.copy.max.lag.ms: {some}"
    how = "`tierlog tier status` shows why; without an error there, uploads are too slow for the load."
    return [Problem(Status.DEGRADED, what, how)]


def _certificates(seen: Observation) -> list[Problem]:
    """Certificates that expire soon or have expired, and replaced ones that cannot be used."""
    problems = []
    soon = sorted(
        (row for row in seen.certificates if row["days_left"] < EXPIRES_SOON_DAYS),
        key=lambda row: int(row["days_left"]),
    )
    how = "Replace the file of ssl.keystore.location: brokers use the new one for new connections."
    if soon:
        named = ", ".join(_expiry(row) for row in soon[:NAMED_MAX])
        some = named + (" and others" if len(soon) > NAMED_MAX else "")
        status = Status.UNAVAILABLE if soon[0]["days_left"] < 0 else Status.DEGRADED
        problems.append(Problem(status, f"certificates expire: {some}", how))
    failed = [row for row in seen.certificates if row["reload_error"]]
    if failed:
        what = f"{_listener(failed[0])} does not use its replaced certificate: {failed[0]['reload_error']}"
        problems.append(Problem(Status.DEGRADED, what, how))
    return problems


def _expiry(row: Mapping[str, Any]) -> str:
    days = int(row["days_left"])
    return f"{_listener(row)} " + (f"in {counted(days, 'day')}" if days >= 0 else "has expired")


def _listener(row: Mapping[str, Any]) -> str:
    return f"listener {row['listener']} of broker {row['broker']}"


def _versions(seen: Observation) -> list[Problem]:
    """Nodes whose versions of tierlog do not understand each other."""
    if not seen.versions:
        return []
    found = [f"node {row['broker']} with node {row['node_id']}: {row['why']}" for row in seen.versions]
    some = "; ".join(found[:NAMED_MAX]) + (" and others" if len(found) > NAMED_MAX else "")
    how = (
        "Run the same version on all nodes, or two successive ones during an upgrade: "
        "`tierlog cluster versions`, docs/howto/upgrade.md."
    )
    what = f"nodes of different versions do not understand each other: {some}"
    return [Problem(Status.DEGRADED, what, how)]


def _names(seen: Observation, condition: str) -> str:
    """The first partitions in this condition: ": orders-0, orders-3 and others"."""
    rows = (seen.unhealthy or {}).get("partitions", ())
    found = [f"{row['topic']}-{row['partition']}" for row in rows if condition in row["conditions"]]
    if not found:
        return ""
    total = (seen.brokers or {})["partitions"][condition]
    return ": " + ", ".join(found[:NAMED_MAX]) + (" and others" if total > len(found[:NAMED_MAX]) else "")


def _list(nodes: set[int]) -> str:
    return ", ".join(f"node {one}" for one in sorted(nodes)) + "."
