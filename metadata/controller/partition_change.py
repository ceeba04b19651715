"""The next state of one partition: the one door for every change of leader, in-sync set and epochs.

Whoever changes a partition says what is wanted of its replicas and its in-sync set; `settle` does what
follows from that. What always holds afterwards (`check_partition`):

- the in-sync set is never empty and within the replicas; the leader is one of it;
- the eligible replicas (KIP-966) are out of sync but hold all that is committed: they left when the in-sync
  set was, or fell, below min.insync.replicas, and below it nothing is committed;
- nobody else is elected, unless unclean election is allowed;
- who is offline does not lead, and who is empty only in an unclean election that finds nobody else;
- who has no room neither leads nor is in sync, unless nobody who has could lead instead;
- the leader epoch grows with each change of leader, the partition epoch with each change at all.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from tierlog.base.types import require
from tierlog.metadata.controller.rules import ElectionRules
from tierlog.metadata.image import PartitionImage

NO_LEADER = -1
NO_BROKERS: frozenset[int] = frozenset()


def build_partition_change(
    before: PartitionImage,
    wanted: PartitionImage,
    rules: ElectionRules,
    *,
    ineligible: frozenset[int] = NO_BROKERS,
    elect_preferred: bool = False,
    restarted_leader: int = NO_LEADER,
) -> PartitionImage:
    """`before` itself if nothing changes.

    `wanted`: replicas, adding, removing, in-sync set and marks as requested; an empty in-sync set stands for
    any replica that has all committed records. `ineligible`: brokers that may have lost data.
    `elect_preferred`: elect the preferred leader if it is in sync. `restarted_leader`: a broker that
    restarted; if it is the leader, the leader epoch grows.
    """
    after = _marked(before, _completed(wanted))
    replicas, able = after.replicas, rules.without(after.offline)
    rules = able.without(after.emptied)
    ineligible = ineligible.union(after.offline, after.emptied)
    whole = (set(before.in_sync) | set(before.eligible)) - ineligible
    in_sync = _in_order(replicas, after.in_sync) or _last_resort(before, replicas, whole, rules, after.full)
    in_sync = _with_room(in_sync, after.full, rules)
    leader = _leader(before.leader, replicas, in_sync, rules, elect_preferred)
    eligible = [one for one in replicas if one in whole and one not in in_sync]
    if leader == NO_LEADER:
        leader = _first(_roomy_first(eligible, after.full), rules)
        if leader != NO_LEADER:
            in_sync = (leader,)
        elif rules.unclean:
            candidates = (before.leader, before.last_leader, *replicas)
            leader = _first(candidates, rules, within=replicas)
            if leader == NO_LEADER:
                leader = _first(candidates, able, within=replicas)
            if leader != NO_LEADER:  # what the others hold may differ from what it holds
                in_sync, whole = (leader,), set()
    if len(in_sync) < rules.effective_min_isr(replicas):
        eligible = [one for one in replicas if one in whole and one not in in_sync]
    else:
        eligible = []
    return _with_epochs(before, after, in_sync, leader, tuple(eligible), restarted_leader)


def _with_epochs(
    before: PartitionImage,
    after: PartitionImage,
    in_sync: tuple[int, ...],
    leader: int,
    eligible: tuple[int, ...],
    restarted_leader: int,
) -> PartitionImage:
    """A replica that is taken off also ends the leader's epoch: it must not be counted any more (KIP-704)."""
    taken_off = not set(before.replicas) <= set(after.replicas)
    new_reign = leader != before.leader or taken_off or leader == restarted_leader != NO_LEADER
    last_leader = NO_LEADER
    if leader == NO_LEADER:
        last_leader = before.leader if before.leader != NO_LEADER else before.last_leader
    result = PartitionImage(
        replicas=after.replicas,
        in_sync=in_sync,
        leader=leader,
        leader_epoch=before.leader_epoch + new_reign,
        partition_epoch=before.partition_epoch,
        eligible=eligible,
        last_leader=last_leader,
        adding=after.adding,
        removing=after.removing,
        offline=after.offline,
        emptied=tuple(one for one in after.emptied if one != leader),
        full=after.full,
    )
    return before if result == before else replace(result, partition_epoch=before.partition_epoch + 1)


def _completed(wanted: PartitionImage) -> PartitionImage:
    """A reassignment ends once all who are to stay are in sync (KIP-455)."""
    if not wanted.is_reassigned:
        return wanted
    target = tuple(one for one in wanted.replicas if one not in wanted.removing)
    if not set(target) <= set(wanted.in_sync):
        return wanted
    return replace(wanted, replicas=target, in_sync=target, adding=(), removing=())


def _marked(before: PartitionImage, wanted: PartitionImage) -> PartitionImage:
    """Of replicas alone. Who comes into the in-sync set is not empty any more, and where all are, nobody
    misses anything."""
    if not (wanted.offline or wanted.emptied or wanted.full):
        return wanted
    offline = _in_order(wanted.replicas, wanted.offline)
    emptied = _in_order(wanted.replicas, set(wanted.emptied) - (set(wanted.in_sync) - set(before.in_sync)))
    emptied = () if emptied == wanted.replicas else emptied
    return replace(wanted, offline=offline, emptied=emptied, full=_in_order(wanted.replicas, wanted.full))


def _last_resort(
    before: PartitionImage,
    replicas: tuple[int, ...],
    whole: set[int],
    rules: ElectionRules,
    full: tuple[int, ...],
) -> tuple[int, ...]:
    """All members of the in-sync set are to leave. One that holds all and lives takes their place, else one
    that holds all; failing that the members stay: nobody knows more than they."""
    kept = _in_order(replicas, before.in_sync)
    holding = [one for one in kept if one in whole] + [
        one for one in replicas if one in whole and one not in kept
    ]
    for one in _roomy_first(holding, full):
        if one in rules.may_lead:
            return (one,)
    return tuple(holding[:1]) or kept


def _with_room(in_sync: tuple[int, ...], full: tuple[int, ...], rules: ElectionRules) -> tuple[int, ...]:
    """Those who can take records, so that nobody waits for the others; all, if none who can may lead."""
    roomy = tuple(one for one in in_sync if one not in full)
    return in_sync if rules.may_lead.isdisjoint(roomy) else roomy


def _roomy_first(members: Iterable[int], full: tuple[int, ...]) -> list[int]:
    return sorted(members, key=full.__contains__)


def _leader(
    before: int,
    replicas: tuple[int, ...],
    in_sync: tuple[int, ...],
    rules: ElectionRules,
    elect_preferred: bool,
) -> int:
    """Within the in-sync set. Who is about to stop leads on if nobody else can."""
    if elect_preferred and replicas[0] in in_sync and replicas[0] in rules.may_lead:
        return replicas[0]
    if before in in_sync and before in rules.may_lead:
        return before
    leader = _first(in_sync, rules)
    if leader == NO_LEADER and before in in_sync and before in rules.live:
        return before
    return leader


def _first(candidates: Iterable[int], rules: ElectionRules, within: tuple[int, ...] | None = None) -> int:
    for one in candidates:
        if one in rules.may_lead and (within is None or one in within):
            return one
    return NO_LEADER


def _in_order(replicas: tuple[int, ...], members: Iterable[int]) -> tuple[int, ...]:
    chosen = set(members)
    return tuple(one for one in replicas if one in chosen)


def check_partition(partition: PartitionImage, rules: ElectionRules) -> None:
    """Raises InvariantViolation if what always holds of one state does not."""
    replicas, in_sync, eligible = set(partition.replicas), set(partition.in_sync), set(partition.eligible)
    require(len(replicas) == len(partition.replicas) > 0, f"{partition}: replicas twice, or none")
    require(bool(in_sync), f"{partition}: nobody is in sync")
    require(in_sync <= replicas, f"{partition}: in sync but not a replica")
    require(eligible <= replicas - in_sync, f"{partition}: eligible but in sync, or not a replica")
    require(partition.leader == NO_LEADER or partition.leader in in_sync, f"{partition}: leader not in sync")
    require(
        partition.leader == NO_LEADER or partition.last_leader == NO_LEADER,
        f"{partition}: a last leader beside a leader",
    )
    marked = {*partition.offline, *partition.emptied}
    require(marked <= replicas, f"{partition}: offline or empty, but not a replica")
    require(partition.leader not in marked, f"{partition}: its leader is offline or empty")
    full = set(partition.full)
    require(full <= replicas, f"{partition}: full, but not a replica")
    could_lead = (in_sync & rules.may_lead) - marked - full
    require(not (could_lead and full & in_sync), f"{partition}: full, and in sync beside {could_lead}")
    moving = set(partition.adding) | set(partition.removing)
    require(moving <= replicas, f"{partition}: moves what is not a replica")
    require(not set(partition.adding) & set(partition.removing), f"{partition}: adds what it removes")
    require(not moving or replicas > set(partition.removing), f"{partition}: nobody would stay")
