"""Diagnosis: rules that derive from evidence what is wrong with a cluster, why, and what mends it.

Pure: `tierlog doctor` passes the evidence of a running cluster, or of a debug bundle. The rules of cluster
health belong to it; further ones examine metrics, settings of topics, clocks and log directories.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from shlex import quote
from typing import Any

from tierlog.base.text import counted, listed, printable, size
from tierlog.broker.diagnosis.evidence import BROKERS, DIRECTORIES, QUORUM, TIER, Evidence, observation_of
from tierlog.broker.diagnosis.health import NAMED_MAX, Status, assess_by_rule
from tierlog.broker.diagnosis.metric_rules import METRIC_RULES, Urgency

CLOCK_AHEAD_S = 3.0
"""Seconds between wall clocks from which they are reported. NTP keeps them within milliseconds."""

FILES_SHARE = 0.8  # open files beyond this share of the limit are reported
METADATA_BEHIND = 1_000  # entries of the metadata log that a node has not applied, while the leader has

NO_BUCKET = "NoSuchBucket"  # error of S3 if the bucket does not exist

AUDIT_TOPIC = "audit.log.topic"
OF_NODES = ("/v1/", "metrics of ", "topics of ")
"""Missing evidence by which other rules find nothing, though something may be wrong."""

SKEW, SKEW_LEADERS = 2, 20
"""Leaderships of a broker that are reported: twice the average, and at least so many."""
SKEW_BYTES = 10 << 30  # stored by a broker, in the same way


URGENCY = {Status.UNAVAILABLE: Urgency.UNAVAILABLE, Status.DEGRADED: Urgency.DEGRADED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`next`: the command or change that mends it. `runbook`: page with the steps; "" if `next` is all."""

    rule: str
    urgency: Urgency
    what: str
    why: str
    next: str
    runbook: str = ""


LOST_MAJORITY = "docs/runbooks/lost-majority.md"
HEALTH_RULES = {
    "quorum": (
        "Without a leader, topics, settings and in-sync replicas cannot change, and leases end. Mend this "
        "first: commands that change them fail until there is one.",
        LOST_MAJORITY,
    ),
    "node": (
        "Its process has ended or hangs, or the network to it is broken.",
        "docs/runbooks/lost-broker.md",
    ),
    "partitions": (
        "Replicas are on brokers that are down, or have not caught up.",
        "docs/runbooks/lost-broker.md",
    ),
    "damaged-log": ("A disk has returned other bytes than were written.", "docs/runbooks/damaged-log.md"),
    "damaged-object": (
        "Someone or something has changed or deleted objects in the bucket.",
        "docs/runbooks/damaged-object.md",
    ),
    "manifest": ("Something else writes to the bucket.", "docs/runbooks/damaged-object.md"),
    "unread-manifest": (
        "The quorum was recovered, and the bucket may know of more segments.",
        "docs/runbooks/lost-majority-for-good.md",
    ),
    "object-store": (
        "The store, the network or the credentials fail. Nothing is lost while local disks have space.",
        "docs/runbooks/bucket-down.md",
    ),
    "uploads-late": ("The store fails, or uploads are slower than the load.", "docs/runbooks/bucket-down.md"),
    "versions": (
        "An upgrade went from a version that is too old, or a node was left behind.",
        "docs/howto/upgrade.md",
    ),
    "certificate": (
        "After its expiry, clients and brokers refuse the connection.",
        "docs/howto/secure-a-cluster.md",
    ),
}
"""Why, and the runbook, by the rule of cluster health."""

BUCKET_LOST = (
    "The bucket was deleted, its account is closed, or object.store.url names another one.",
    "docs/runbooks/bucket-lost.md",
)
"""In place of the rule object-store, for the error NO_BUCKET."""


def diagnose(evidence: Evidence) -> list[Finding]:
    """The findings, the most urgent first."""
    found = [finding for rule in (_health, *RULES) for finding in _examine(rule, evidence)]
    order = list(Urgency)
    return sorted(found, key=lambda one: order.index(one.urgency))


def _examine(rule: Callable[[Evidence], Iterator[Finding]], evidence: Evidence) -> list[Finding]:
    """The findings of a rule. Evidence is as good as the servers and bundles from which it comes: a rule that
    cannot read it says so, and the others still count."""
    try:
        return list(rule(evidence))
    except (ValueError, LookupError, TypeError, AttributeError) as failure:
        return [
            Finding(
                rule="unreadable",
                urgency=Urgency.RISK,
                what=f"the rule {rule.__name__.strip('_')} cannot read the evidence: {failure!r}",
                why="A node runs another version, or the server that responds is not a node of tierlog.",
                next="Compare the builds of `tierlog cluster versions` with that of this command, and check "
                "the addresses.",
            )
        ]


def report(findings: Sequence[Finding]) -> str:
    """The findings for people, each in four lines."""
    lines = []
    for one in findings:
        what, next_ = printable(one.what), printable(one.next)  # a name in it must not begin a line
        lines += [f"{one.urgency.upper()}: {what}", f"  why:  {one.why}", f"  next: {next_}"]
        lines += [f"  see:  {one.runbook}"] if one.runbook else []
        lines.append("")
    return "\n".join(lines)


def _health(evidence: Evidence) -> Iterator[Finding]:
    seen = observation_of(evidence.answers)
    for rule, problem in assess_by_rule(seen, evidence.processes, evidence.roles):
        is_lost = rule == "object-store" and NO_BUCKET in problem.what
        why, runbook = BUCKET_LOST if is_lost else HEALTH_RULES[rule]
        if seen.leader is None and rule in ("node", "partitions"):
            runbook = LOST_MAJORITY
        yield Finding(
            rule="bucket-lost" if is_lost else rule,
            urgency=URGENCY[problem.status],
            what=problem.what,
            why=why,
            next=problem.next,
            runbook=runbook,
        )


# ---- nodes ------------------------------------------------------------------------------------------


def _clocks(evidence: Evidence) -> Iterator[Finding]:
    """Nodes whose clock differs from that of most nodes: this machine's may be the wrong one."""
    ahead = sorted(evidence.clocks.values())
    if not ahead:
        return
    middle = ahead[len(ahead) // 2]
    wrong = {node: at - middle for node, at in evidence.clocks.items() if abs(at - middle) > CLOCK_AHEAD_S}
    if len(ahead) < 3 and abs(middle) > CLOCK_AHEAD_S:  # two nodes cannot outvote this machine
        wrong = {node: at for node, at in evidence.clocks.items() if abs(at) > CLOCK_AHEAD_S}
    for node, seconds in sorted(wrong.items()):
        yield Finding(
            rule="clock",
            urgency=Urgency.RISK,
            what=f"the clock of node {node} is {abs(seconds):,.0f} s {'ahead' if seconds > 0 else 'behind'}",
            why="A leader whose clock is ahead deletes records too early, and object stores refuse requests "
            "whose time is wrong.",
            next=f"Stop node {node} if its clock is ahead, and let chrony or timesyncd set it.",
            runbook="docs/runbooks/wrong-clock.md",
        )


def _metadata_behind(evidence: Evidence) -> Iterator[Finding]:
    documents = evidence.answers.of(QUORUM)
    newest = max((int(one["applied_index"]) for one in documents.values()), default=0)
    for node, document in sorted(documents.items()):
        behind = newest - int(document["applied_index"])
        if behind > METADATA_BEHIND:
            yield Finding(
                rule="metadata-behind",
                urgency=Urgency.RISK,
                what=f"node {node} has not applied the last {behind:,} changes of the metadata",
                why="It starts, is cut off from the leader of the quorum, or its disk is slow. It serves old "
                "metadata.",
                next=f"See the log of node {node}, and `tierlog quorum status`.",
            )


def _directories(evidence: Evidence) -> Iterator[Finding]:
    for node, document in sorted(evidence.answers.of(DIRECTORIES).items()):
        for one in document["directories"]:
            place = f"{one['directory']} of broker {node}"
            if one["failure"]:
                yield Finding(
                    rule="disk-failed",
                    urgency=Urgency.DEGRADED,
                    what=f"log directory {place} is offline: {one['failure']}",
                    why="The disk returned an error. Other replicas lead its partitions.",
                    next=f"Replace the disk, and start broker {node} again.",
                    runbook="docs/runbooks/full-disk.md",
                )
            elif one["full"]:
                yield Finding(
                    rule="disk-full",
                    urgency=Urgency.DEGRADED,
                    what=f"log directory {place} is full: {_free(one)} left",
                    why="The broker refuses appends to it. Partitions without another in-sync replica can "
                    "only be read.",
                    next="Shorten the retention of large topics with `tierlog topic alter`, or free space.",
                    runbook="docs/runbooks/full-disk.md",
                )


def _free(directory: dict[str, Any]) -> str:
    usable = directory.get("usable_bytes")
    return "no space is" if usable is None else f"{size(usable)} are"


def _uploads(evidence: Evidence) -> Iterator[Finding]:
    """Partitions whose uploads fail for another reason than an outage of the whole store."""
    if any(not one["available"] for one in evidence.answers.of("/v1/tier/store").values()):
        return
    places: dict[str, list[str]] = {}
    for document in evidence.answers.of(TIER).values():
        for row in document["partitions"]:
            if error := row["last_error"]:
                places.setdefault(error, []).append(f"{row['topic']}-{row['partition']}")
    for error, found in nlargest(NAMED_MAX, places.items(), key=lambda one: len(one[1])):
        is_lost = NO_BUCKET in error
        yield Finding(
            rule="bucket-lost" if is_lost else "upload-fails",
            urgency=Urgency.DEGRADED if is_lost else Urgency.RISK,
            what=f"uploads of {counted(len(found), 'partition')} fail: {error} ({listed(found, NAMED_MAX)})",
            why="Their local segments stay until they are uploaded, so the disk fills up.",
            next="Mend what the error names; `tierlog tier status` shows when it is over.",
            runbook=BUCKET_LOST[1] if is_lost else "docs/runbooks/bucket-down.md",
        )


# ---- metrics ----------------------------------------------------------------------------------------


def _metrics(evidence: Evidence) -> Iterator[Finding]:
    for rule in METRIC_RULES:
        places: dict[str, list[str]] = {}
        for node, labels, value in evidence.samples(rule.metric):
            if value > rule.above:
                shown = {"reason": "", "directory": "", **labels, "value": f"{value:,.0f}"}
                places.setdefault(rule.what.format(**shown), []).append(str(node))
        for what, nodes in places.items():
            yield Finding(
                rule=rule.rule,
                urgency=rule.urgency,
                what=f"node {', '.join(nodes)}: {what}",
                why=rule.why,
                next=rule.next,
                runbook=rule.runbook,
            )


def _open_files(evidence: Evidence) -> Iterator[Finding]:
    limits = {node: value for node, _, value in evidence.samples("process_max_fds")}
    for node, _, used in evidence.samples("process_open_fds"):
        limit = limits.get(node, 0)
        if limit and used > FILES_SHARE * limit:
            yield Finding(
                rule="open-files",
                urgency=Urgency.RISK,
                what=f"node {node} has {used:,.0f} of {limit:,.0f} possible files open",
                why="Each connection and each segment that is read needs one. At the limit, connections are "
                "refused.",
                next="Raise LimitNOFILE of the systemd unit (`ulimit -n`), and restart the node.",
            )


# ---- the shape of the cluster -----------------------------------------------------------------------


def _voters(evidence: Evidence) -> Iterator[Finding]:
    seen = observation_of(evidence.answers)
    brokers = (seen.brokers or {}).get("brokers", ())
    if len(seen.voters) == 1 and len(brokers) > 1:
        yield Finding(
            rule="one-voter",
            urgency=Urgency.RISK,
            what=f"the metadata quorum of {len(brokers)} brokers has one voter",
            why="If its disk is lost, the metadata of the cluster is lost.",
            next="Add two voters with `tierlog quorum add NODE URL`.",
        )


def _topics(evidence: Evidence) -> Iterator[Finding]:
    """Topics whose settings do not fit their replicas."""
    cluster = evidence.cluster
    brokers = len(cluster.get("brokers", ()))
    default_min = _default_min_in_sync(evidence)
    single, blocked, weak = [], [], []
    for topic in cluster.get("topics", ()):
        copies = min((len(one["replicas"]) for one in topic["partitions"]), default=0)
        least = int(topic["configs"].get("min.insync.replicas", default_min))
        if copies == 1 and brokers > 1:
            single.append(topic["name"])
        elif copies > 1 and least >= copies:
            blocked.append(topic["name"])
        elif copies > 2 and least == 1:
            weak.append(topic["name"])
    if single:
        yield _of_topics(
            "one-replica",
            single,
            "with one replica",
            "They are unavailable while its broker is down, and lost with its disk, but for what is tiered.",
            "Add replicas with `tierlog partition move`, or create topics with --replication-factor 3.",
        )
    if blocked:
        yield _of_topics(
            "no-slack",
            blocked,
            "whose min.insync.replicas is the number of replicas",
            "Producers with acks=all stop whenever one broker is down or restarts.",
            "Lower it: `tierlog topic alter TOPIC --config min.insync.replicas=2`, or add replicas.",
        )
    if weak:
        yield _of_topics(
            "weak-acks",
            weak,
            "with min.insync.replicas=1",
            "While the others are out of sync, a record with acks=all may exist once.",
            "Raise it: `tierlog topic alter TOPIC --config min.insync.replicas=2`.",
        )


def _of_topics(rule: str, names: Sequence[str], what: str, why: str, next_: str) -> Finding:
    count = f"{counted(len(names), 'topic')} {what}: {listed(sorted(names), NAMED_MAX)}"
    return Finding(rule=rule, urgency=Urgency.ADVICE, what=count, why=why, next=next_)


def _default_min_in_sync(evidence: Evidence) -> str:
    values = (one.get("min.insync.replicas") for one in evidence.settings.values())
    return next((value for value in values if value), "1")


def _leaders(evidence: Evidence) -> Iterator[Finding]:
    for document in evidence.answers.of(BROKERS).values():
        leads = {one["id"]: one["leads"] for one in document["brokers"] if not one["fenced"]}
        most = max(leads, key=lambda broker: leads[broker], default=None)
        if most is None or leads[most] < SKEW_LEADERS:
            continue
        if leads[most] * len(leads) > SKEW * sum(leads.values()):
            yield Finding(
                rule="leaders-uneven",
                urgency=Urgency.ADVICE,
                what=f"broker {most} leads {leads[most]:,} of {sum(leads.values()):,} partitions",
                why="It was the last to stop, or partitions were created while others were down.",
                next="`tierlog partition elect` returns leaderships, `tierlog partition balance` moves "
                "replicas.",
            )


def _stored(evidence: Evidence) -> Iterator[Finding]:
    """A broker with far more bytes than the others, and its largest partitions."""
    held = {
        node: sum(int(one.get("local_bytes") or 0) for one in document["directories"])
        for node, document in evidence.answers.of(DIRECTORIES).items()
    }
    most = max(held, key=lambda node: held[node], default=None)
    if most is None or held[most] < SKEW_BYTES or held[most] * len(held) <= SKEW * sum(held.values()):
        return
    sizes = {
        f"{labels.get('topic')}-{labels.get('partition')}": value
        for node, labels, value in evidence.samples("kafka_log_log_size")
        if node == most
    }
    largest = nlargest(NAMED_MAX, sizes, key=lambda name: sizes[name])
    named = ", ".join(f"{name} ({size(sizes[name])})" for name in largest)
    yield Finding(
        rule="stored-uneven",
        urgency=Urgency.ADVICE,
        what=f"broker {most} stores {size(held[most])} of {size(sum(held.values()))} of all brokers"
        + (f"; most of it in {named}" if named else ""),
        why="Some partitions grow faster than others, or brokers were added later.",
        next="`tierlog partition balance --explain` shows what would move, and why.",
        runbook="docs/howto/balance.md",
    )


def _racks(evidence: Evidence) -> Iterator[Finding]:
    brokers = evidence.cluster.get("brokers", ())
    without = [str(one["id"]) for one in brokers if not one["rack"]]
    if without and len(without) < len(brokers):
        yield Finding(
            rule="racks",
            urgency=Urgency.ADVICE,
            what=f"{counted(len(without), 'broker')} without broker.rack, which others have: "
            f"{listed(without, NAMED_MAX)}",
            why="Replicas are spread over racks only if all brokers have one.",
            next="Set broker.rack of all brokers.",
        )


def _builds(evidence: Evidence) -> Iterator[Finding]:
    nodes: dict[str, list[str]] = {}
    for node, document in sorted(evidence.answers.of("/v1/versions").items()):
        build = " ".join(filter(None, (document["version"], (document["commit"] or "")[:12])))
        nodes.setdefault(build, []).append(str(node))
    if len(nodes) > 1:
        builds = "; ".join(f"{build} on node {listed(at, NAMED_MAX)}" for build, at in sorted(nodes.items()))
        yield Finding(
            rule="mixed-builds",
            urgency=Urgency.ADVICE,
            what=f"the nodes run different builds: {builds}",
            why="A rolling upgrade has begun, and has not ended.",
            next="Upgrade the other nodes, or take those with the newer build back. `tierlog cluster "
            "finalize` is for later, when all have run it for a while: it has no way back.",
            runbook="docs/howto/upgrade.md",
        )


def _audit_topic(evidence: Evidence) -> Iterator[Finding]:
    """Brokers with another audit.log.topic than others. The topic is closed to clients by that setting of its
    leader."""
    topics = {broker: found.get(AUDIT_TOPIC) or "" for broker, found in evidence.settings.items()}
    if len(set(topics.values())) < 2:
        return
    brokers = {topic: [str(one) for one, at in topics.items() if at == topic] for topic in topics.values()}
    values = "; ".join(
        f"{topic or 'none'} on broker {listed(at, NAMED_MAX)}" for topic, at in sorted(brokers.items())
    )
    yield Finding(
        rule="audit-topic-differs",
        urgency=Urgency.RISK,
        what=f"brokers have different values of {AUDIT_TOPIC}: {values}",
        why="A broker that does not have a topic as its audit topic lets clients write to it and delete its "
        "records.",
        next=f"Set the same {AUDIT_TOPIC} on all brokers, and restart them one by one.",
        runbook="docs/howto/audit-log.md",
    )


def _hanging(evidence: Evidence) -> Iterator[Finding]:
    if not evidence.hanging:
        return
    rows = evidence.hanging
    first = rows[0]
    places = sorted({f"{row['topic']}-{row['partition']}" for row in rows})
    yield Finding(
        rule="hanging-transaction",
        urgency=Urgency.UNAVAILABLE,
        what=f"{counted(len(rows), 'transaction')} that no coordinator will end: {listed(places, NAMED_MAX)}",
        why="Consumers of committed records stop before them.",
        next=f"`tierlog txn abort {quote(first['topic'])} {int(first['partition'])} "
        f"{int(first['start_offset'])}`, once the producer has ended; `tierlog txn find-hanging` lists all.",
        runbook="docs/explanation/transactions.md",
    )


def _not_read(evidence: Evidence) -> Iterator[Finding]:
    """Evidence that is missing. A node that does not respond has a finding of its own."""
    missing = [text for text in evidence.not_read if not text.endswith("does not respond")]
    if missing:
        is_of_nodes = any(text.startswith(OF_NODES) for text in missing)
        yield Finding(
            rule="not-read",
            urgency=Urgency.RISK if is_of_nodes else Urgency.ADVICE,
            what=f"not everything could be read: {'; '.join(missing[:NAMED_MAX])}",
            why="Nodes do not respond, the login lacks a permission, or there was no time left.",
            next="Start the nodes, or give --client-config with a login that may describe the cluster.",
        )


RULES: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    _hanging,
    _directories,
    _clocks,
    _metadata_behind,
    _uploads,
    _metrics,
    _open_files,
    _voters,
    _topics,
    _leaders,
    _stored,
    _racks,
    _builds,
    _audit_topic,
    _not_read,
)
