"""Rollout: the plan of a rolling restart or upgrade, and the checks that decide whether it may continue.

Pure: `rollout_run` asks the nodes, runs the operator's commands and keeps the state in a file. A step stops
and starts the nodes of one host, or one node. Voters restart one at a time and the leader of the quorum last,
so that the quorum elects at most once more than it has to.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tierlog.broker.diagnosis.evidence import QUORUM, Answers, Observation, newest_first, observation_of
from tierlog.broker.diagnosis.findings import HEALTH_RULES, METADATA_BEHIND
from tierlog.broker.diagnosis.health import NAMED_MAX, assess_by_rule
from tierlog.cli.errors import CliError, ExitCode, usage
from tierlog.cli.output import counted, listed

VERSIONS = "/v1/versions"
ALL_HOSTS, ALL_NODES = "hosts", "nodes"
"""Words of --hosts: each host of the cluster, or each node by itself."""

PLACEHOLDERS = ("host", "nodes", "version")
SAFE = re.compile(r"[\w:][\w.:+-]*", re.ASCII)
"""Values of placeholders: a shell gives these characters no other meaning, inside of quotes or outside. No
program takes such a value for an option."""

COMMIT = re.compile(r"[0-9a-f]{7,40}")

REDUNDANCY_RULES = frozenset({"quorum", "node", "partitions"})
"""Rules of cluster health that no operator can ignore: the next restart would take more away."""

IGNORABLE_RULES = tuple(sorted(HEALTH_RULES.keys() - REDUNDANCY_RULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """`url`: of its admin API, as it has registered. `started`: identifies its process; None if it did not
    respond, or its version does not tell."""

    id: int
    url: str
    is_broker: bool
    is_voter: bool
    version: str | None = None
    commit: str | None = None
    started: int | None = None
    epoch: int | None = None

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    def runs(self, version: str) -> bool:
        """Whether this is its version, or the beginning of its commit."""
        is_commit = COMMIT.fullmatch(version) is not None and (self.commit or "").startswith(version)
        return self.version == version or is_commit


class Step(msgspec.Struct, kw_only=True):
    """Nodes that stop and start together. `before`: node -> its `started` and `epoch` before the step; set
    when it begins. `commands`: how many have succeeded. `seconds`: set when the step has ended."""

    name: str
    host: str
    nodes: tuple[int, ...]
    before: dict[int, tuple[int | None, int | None]] | None = None
    commands: int = 0
    seconds: float | None = None

    @property
    def has_begun(self) -> bool:
        return self.before is not None

    @property
    def has_ended(self) -> bool:
        return self.seconds is not None

    @property
    def state(self) -> str:
        return "done" if self.has_ended else "begun" if self.has_begun else "waits"


class Rollout(msgspec.Struct, kw_only=True):
    """The plan and how far it is: the content of the state file. `hosts`: as given. `version`: what the nodes
    must run; None: any version will do."""

    cluster_id: str
    hosts: tuple[str, ...]
    commands: tuple[str, ...]
    version: str | None
    steps: list[Step]

    def next_step(self, leader: int | None) -> Step | None:
        """The step that has begun; or else the first that does not stop the quorum's leader; None if all have
        ended."""
        left = [step for step in self.steps if not step.has_ended]
        begun = [step for step in left if step.has_begun]
        others = [step for step in left if leader not in step.nodes]
        return next(iter([*begun, *others, *left]), None)

    def begun(self) -> list[Step]:
        """The steps whose nodes may be down."""
        return [step for step in self.steps if step.has_begun and not step.has_ended]

    def order(self, leader: int | None) -> list[Step]:
        """The steps in the order in which they run if the quorum keeps its leader."""
        return sorted(self.steps, key=lambda step: (not step.has_begun, leader in step.nodes))

    def command(self, number: int, step: Step) -> str:
        """The command with its placeholders replaced."""
        values = {
            "host": step.host,
            "nodes": " ".join(map(str, step.nodes)),
            "version": self.version or "",
        }
        pattern = "{(" + "|".join(PLACEHOLDERS) + ")}"
        return re.sub(pattern, lambda found: values[found[1]], self.commands[number])


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason not to continue, and what to do `next`."""

    what: str
    next: str


# ---- the plan


def nodes_of(answers: Answers) -> dict[int, Node]:
    """The members of the cluster: its brokers, and the voters."""
    seen, versions = observation_of(answers), answers.of(VERSIONS)
    registered = seen.registered
    quorum = answers.of(QUORUM)
    members = {
        int(node): url
        for newer in reversed(newest_first(seen))
        for node, url in {**quorum[newer].get("learners", {}), **quorum[newer]["voters"]}.items()
    }
    found = {}
    for node in sorted({*registered, *seen.voters}):
        broker, build = registered.get(node, {}), versions.get(node, {})
        found[node] = Node(
            id=node,
            # not the given address, which may be one of a tunnel or a load balancer: commands go to this host
            url=str(broker.get("admin_url") or members.get(node) or answers.urls.get(node) or ""),
            is_broker=node in registered,
            is_voter=node in seen.voters,
            version=build.get("version"),
            commit=build.get("commit"),
            started=build.get("started_at_ms"),
            epoch=broker.get("epoch"),
        )
    return found


def plan(
    hosts: Sequence[str],
    nodes: Mapping[int, Node],
    *,
    cluster_id: str,
    commands: Sequence[str],
    version: str | None,
) -> Rollout:
    """The steps, brokers without a vote before voters, otherwise in the order of `hosts`. Those whose nodes
    run the version already have ended. Raises CliError for an unknown host or node, and for commands that
    would do the same everywhere."""
    check_commands(commands, version)
    groups = _groups(hosts, nodes)
    seen: set[int] = set()
    for name, members in groups.items():
        if twice := seen & {node.id for node in members}:
            raise usage(f"node {min(twice)} is named twice", hint=f"{name!r} stands for it too.")
        seen |= {node.id for node in members}
        voters = [str(node.id) for node in members if node.is_voter]
        if len(voters) > 1:
            raise usage(
                f"host {name} has the voters {listed(voters)}, which may not stop at once",
                hint=f"Name its nodes instead: --hosts {','.join(str(node.id) for node in members)}",
            )
    steps = [
        Step(
            name=name,
            host=_host_of(name, members[0]),
            nodes=tuple(node.id for node in members),
            seconds=0.0 if version and all(node.runs(version) for node in members) else None,
        )
        for name, members in sorted(groups.items(), key=lambda one: any(node.is_voter for node in one[1]))
    ]
    return Rollout(
        cluster_id=cluster_id, hosts=tuple(hosts), commands=tuple(commands), version=version, steps=steps
    )


def check_commands(commands: Sequence[str], version: str | None) -> None:
    """Raises CliError."""
    if not commands:
        raise usage(
            "no command given: it restarts the nodes of one host",
            hint="For example: --command \"ssh {host} sudo systemctl restart 'tierlog@*'\"",
        )
    text = "\n".join(commands)
    if "{host}" not in text and "{nodes}" not in text:
        raise usage(
            "the commands would do the same for each host",
            hint="Write {host} where the name of the host belongs, or {nodes} for the ids of its nodes.",
        )
    if shell := re.search(rf"\$\{{({'|'.join(PLACEHOLDERS)})\}}", text):
        raise usage(
            f"a command has {shell[0]}, which would become a variable of the shell after the replacement",
            hint=f"Write {{{shell[1]}}} without the dollar sign.",
        )
    if version is None and "{version}" in text:
        raise usage("a command has {version}, and no version is given", hint="Give it with --to-version.")
    if version is not None:
        _safe(version)


def _groups(hosts: Sequence[str], nodes: Mapping[int, Node]) -> dict[str, list[Node]]:
    by_host: dict[str, list[Node]] = {}
    for node in nodes.values():
        by_host.setdefault(node.host, []).append(node)
    if list(hosts) == [ALL_HOSTS]:
        return by_host
    if list(hosts) == [ALL_NODES]:
        return {str(node.id): [node] for node in nodes.values()}
    groups: dict[str, list[Node]] = {}
    for name in hosts:
        if name.isdecimal() and int(name) in nodes:
            groups[name] = [nodes[int(name)]]
        elif name.lower() in by_host:
            groups[name.lower()] = by_host[name.lower()]
        else:
            known = f"nodes {listed([*map(str, nodes)])} on hosts {listed(sorted(by_host))}"
            raise usage(f"the cluster has no host or node {name!r}", hint=f"It has {known}.")
    if not groups:
        raise usage("no host given", hint=f"Name hosts or nodes, or all: --hosts {ALL_HOSTS}")
    return groups


def _host_of(name: str, node: Node) -> str:
    if not node.host:
        raise usage(
            f"the host of step {name!r} is not known: node {node.id} has registered no admin URL",
            hint="Give it an address of its admin API in its settings, or name the other hosts.",
        )
    return _safe(node.host)


def _safe(value: str) -> str:
    if SAFE.fullmatch(value) is None:
        raise usage(
            f"{value!r} cannot stand in a command, where a shell or program would interpret it",
            hint="Leave {host} or {version} out of the commands, or change the name.",
        )
    return value


# ---- the checks


def cluster_doubts(
    answers: Answers, absent: Collection[int] = (), ignored: Collection[str] = ()
) -> list[Doubt]:
    """Why no node may be stopped now. `absent`: nodes of the step that has begun, which may be down.
    `ignored`: rules of cluster health that the operator accepts."""
    seen = observation_of(answers)
    found = [
        Doubt(problem.what, problem.next)
        for rule, problem in assess_by_rule(_without(seen, absent))
        if rule not in ignored
    ]
    found += _unseen_doubts(seen, absent) + _voter_doubts(seen, absent)
    if seen.brokers is None and not found:
        found.append(Doubt("no node says which brokers and partitions there are", "Run it again."))
    versions = {node: told for node, told in answers.of(VERSIONS).items() if node not in absent}
    if silent := sorted(answers.documents.keys() - versions.keys() - {*absent}):
        what = f"node {listed([*map(str, silent)])} does not tell its version and when it started"
        found.append(Doubt(what, "Run it again."))
    formats = {node: told["format"] for node, told in versions.items()}
    if len(set(formats.values())) > 1:
        values = ", ".join(f"{version} at node {node}" for node, version in sorted(formats.items()))
        what = f"an upgrade is being finalised: tierlog.format is {values}"
        found.append(Doubt(what, "Run it again once `tierlog cluster versions` shows one version."))
    return found


def _unseen_doubts(seen: Observation, absent: Collection[int]) -> list[Doubt]:
    """Brokers whose admin API this machine cannot request. Health does not report them."""
    registered = seen.registered
    unseen = sorted(registered.keys() - seen.quorum.keys() - {*absent})
    if not unseen:
        return []
    where = listed([f"{node} ({registered[node].get('admin_url') or 'no URL'})" for node in unseen])
    what = f"this machine cannot reach the admin API of broker {where}"
    return [Doubt(what, "Set admin.listener of these brokers to an address that this machine reaches.")]


def _voter_doubts(seen: Observation, absent: Collection[int]) -> list[Doubt]:
    """Voters that respond to this command, and count for no majority: cut off from the others, or behind."""
    found = []
    responding = {node: one for node in seen.voters if (one := seen.quorum.get(node)) is not None}
    newest = max((int(one["applied_index"]) for one in responding.values()), default=0)
    for node, one in responding.items():
        behind = newest - int(one["applied_index"])
        if node in absent or seen.leader is None:  # without a leader, the rule of the quorum says so
            continue
        if one.get("leader", seen.leader) != seen.leader:
            what = f"voter {node} does not follow node {seen.leader}, the leader of the quorum"
        elif behind > METADATA_BEHIND:
            what = f"voter {node} has not applied the last {behind:,} changes of metadata"
        else:
            continue
        found.append(Doubt(what, f"Wait, or see `tierlog quorum status` and the log of node {node}."))
    return found


def stop_doubts(
    step: Step, nodes: Mapping[int, Node], partitions: Sequence[Mapping[str, Any]]
) -> list[Doubt]:
    """Partitions, or the quorum, that would not be served while the nodes of the step are down.
    `partitions`: rows of GET /v1/partitions."""
    found = []
    voters = {node.id for node in nodes.values() if node.is_voter}
    left = voters - set(step.nodes)
    if left != voters and len(left) <= len(voters) // 2:
        what = f"without {step.name}, {len(left)} of {counted(len(voters), 'voter')} would be left"
        found.append(Doubt(what, "Add voters with `tierlog quorum add`, or accept it: --allow-unavailable."))
    hurt = [
        f"{row['topic']}-{row['partition']}"
        for row in partitions
        if not set(step.nodes).isdisjoint(row["in_sync"])
        and len(set(row["in_sync"]) - set(step.nodes)) < max(1, row.get("min_in_sync", 1))
    ]
    if hurt:
        what = (
            f"without {step.name}, {counted(len(hurt), 'partition')} would not take records with acks=all: "
            f"{listed(hurt, NAMED_MAX)}"
        )
        how = (
            "Add replicas with `tierlog partition move`, lower min.insync.replicas of the topic, or accept "
            "it: --allow-unavailable."
        )
        found.append(Doubt(what, how))
    return found


def member_doubts(step: Step, nodes: Mapping[int, Node]) -> list[Doubt]:
    """Nodes of the step that have left the cluster since the plan was made."""
    gone = [str(one) for one in step.nodes if one not in nodes]
    if not gone:
        return []
    what = f"node {listed(gone)} of {step.name} is no longer in the cluster"
    return [Doubt(what, "Begin again with --start-over, and with the hosts that are left to do.")]


def not_back(step: Step, nodes: Mapping[int, Node], answers: Answers, version: str | None) -> list[Doubt]:
    """Nodes of the step that have not restarted yet, or run another version."""
    found = []
    for one in step.nodes:
        node = nodes.get(one)
        if one not in answers.of(VERSIONS) or node is None:
            found.append(Doubt(f"node {one} does not respond", f"See the log of node {one}, and start it."))
        elif not _has_restarted(step, node):
            what = f"node {one} has not restarted: it is the process from before the commands"
            found.append(Doubt(what, "Check that the commands stop and start it."))
        elif version is not None and not node.runs(version):
            found.append(wrong_version(node, version))
    return found


def behind_doubts(step: Step, answers: Answers, at_least: int) -> list[Doubt]:
    """Nodes of the step that have not applied the metadata up to this index. Until a voter has it, each
    commit of the quorum needs others, so the next voter must not stop."""
    found = []
    for one in step.nodes:
        applied = answers.of(QUORUM).get(one, {}).get("applied_index", 0)
        if applied < at_least:
            what = (
                f"node {one} is catching up: it has applied {applied:,} of {at_least:,} changes of metadata"
            )
            found.append(Doubt(what, f"Wait, or see the log of node {one}."))
    return found


def newest_index(answers: Answers) -> int:
    """The last change of metadata that a node has applied."""
    return max((int(one["applied_index"]) for one in answers.of(QUORUM).values()), default=0)


def wrong_version(node: Node, version: str) -> Doubt:
    build = f"{node.version} ({node.commit})" if node.commit else node.version
    what = f"node {node.id} runs {build}, not {version}"
    return Doubt(what, "Check that the commands install that version, and that the node starts from it.")


def wrong_versions(step: Step, nodes: Mapping[int, Node], version: str | None) -> list[Doubt]:
    """Nodes that have restarted with another version: waiting does not change that."""
    return [wrong_version(node, version) for node in restarted_wrongly(step, nodes, version) if version]


def restarted_wrongly(step: Step, nodes: Mapping[int, Node], version: str | None) -> list[Node]:
    """Nodes of the step that are another process than before, of another version than this."""
    return [
        node
        for node in (nodes[one] for one in step.nodes if one in nodes)
        if version is not None and node.version and _has_restarted(step, node) and not node.runs(version)
    ]


def is_untouched(step: Step, nodes: Mapping[int, Node], answers: Answers) -> bool:
    """Whether no node of the step has stopped since it began."""
    running = answers.of(VERSIONS)
    return all(one in running and one in nodes and not _has_restarted(step, nodes[one]) for one in step.nodes)


def _has_restarted(step: Step, node: Node) -> bool:
    """Whether it is another process than before. A controller node of 0.1.0 does not tell."""
    started, epoch = (step.before or {}).get(node.id, (None, None))
    if started is None and node.started is None:
        return epoch is None or node.epoch != epoch
    return node.started != started


def _without(seen: Observation, absent: Collection[int]) -> Observation:
    """The observation without what the absence of these nodes explains."""
    if not absent:
        return seen
    quorum = {node: one for node, one in seen.quorum.items() if one is not None or node not in absent}
    if seen.brokers is None or seen.unhealthy is None:
        return replace(seen, quorum=quorum)
    explained: list[Mapping[str, Any]] = []
    rows: list[Mapping[str, Any]] = []
    for row in seen.unhealthy["partitions"]:
        in_sync = set(row["in_sync"])
        down = set(row["replicas"]) - set(row["adding"]) - in_sync | in_sync & set(absent)
        (explained if down and down <= set(absent) else rows).append(row)
    counts = dict(seen.brokers["partitions"])
    for row in explained:
        for condition in row["conditions"]:
            counts[condition] -= 1
    brokers = {
        **seen.brokers,
        "brokers": [one for one in seen.brokers["brokers"] if one["id"] not in absent],
        "assigned": [one for one in seen.brokers["assigned"] if one not in absent],
        "partitions": counts,
    }
    return replace(seen, quorum=quorum, brokers=brokers, unhealthy={**seen.unhealthy, "partitions": rows})


def as_error(doubts: Sequence[Doubt]) -> CliError:
    """The doubts as the error that ends the command."""
    what = "; ".join(doubt.what for doubt in doubts)
    how = " ".join(dict.fromkeys(doubt.next for doubt in doubts))
    return CliError(what, hint=how, code=ExitCode.DEGRADED)
