"""Partition change builder: derives the next state of a partition, with its leader, in-sync set and epochs.

Every change of a partition goes through `build_partition_change`. The caller states the wanted replicas and
in-sync set. Invariants of the result (`check_partition`):

- The in-sync set is never empty and within the replicas, and contains the leader.
- The eligible leader replicas (KIP-966) are out of sync but have all committed records: they left when the
  in-sync set was, or fell, below min.insync.replicas, and below it nothing commits.
- No other replica is elected, unless unclean election is allowed.
- An offline replica does not lead. An emptied one leads only after an unclean election without others.
- A replica on a full disk neither leads nor is in sync, unless no replica with free space could lead.
- The leader epoch grows with each change of leader, and the partition epoch with each change.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from tierlog.base.safeguards import safeguard
from tierlog.base.types import NO_LEADER, require
from tierlog.metadata.controller.rules import ElectionRules
from tierlog.metadata.records import PartitionRecord

NO_BROKERS: frozenset[int] = frozenset()


@safeguard("unclean leader election is disabled")
def build_partition_change(
    before: PartitionRecord,
    wanted: PartitionRecord,
    rules: ElectionRules,
    *,
    ineligible: frozenset[int] = NO_BROKERS,
    elect_preferred: bool = False,
    restarted_broker: int = NO_LEADER,
) -> PartitionRecord:
    """Returns `before` itself if nothing changes.

    `wanted`: replicas, adding, removing, in-sync set, offline, emptied and full as they should be. An empty
    in-sync set stands for any replica that has all committed records. `ineligible`: brokers that may have
    lost data. `elect_preferred`: elect the preferred leader if it is in sync. `restarted_broker`: a broker
    that restarted; if it is the leader, the leader epoch grows.
    """
    after = _cleared_marks(before, _completed(wanted))
    replicas, online_rules = after.replicas, rules.excluding(after.offline)
    rules = online_rules.excluding(after.emptied)
    ineligible = ineligible.union(after.offline, after.emptied)
    complete = (set(before.in_sync) | set(before.eligible)) - ineligible
    in_sync = _in_order(replicas, after.in_sync) or _last_in_sync(
        before, replicas, complete, rules, after.full
    )
    in_sync = _without_full(in_sync, after.full, rules)
    leader = _leader(before.leader, replicas, in_sync, rules, elect_preferred)
    eligible = [one for one in replicas if one in complete and one not in in_sync]
    if leader == NO_LEADER:
        leader = _first(_full_last(eligible, after.full), rules)
        if leader != NO_LEADER:
            in_sync = (leader,)
        elif rules.unclean:
            candidates = (before.leader, before.last_known_leader, *replicas)
            leader = _first(candidates, rules, within=replicas)
            if leader == NO_LEADER:
                leader = _first(candidates, online_rules, within=replicas)
            if leader != NO_LEADER:  # the logs of the others may differ from the new leader's
                in_sync, complete = (leader,), set()
    if len(in_sync) < rules.effective_min_isr(replicas):
        eligible = [one for one in replicas if one in complete and one not in in_sync]
    else:
        eligible = []
    return _with_epochs(before, after, in_sync, leader, tuple(eligible), restarted_broker)


def _with_epochs(
    before: PartitionRecord,
    after: PartitionRecord,
    in_sync: tuple[int, ...],
    leader: int,
    eligible: tuple[int, ...],
    restarted_broker: int,
) -> PartitionRecord:
    """The removal of a replica also starts a leader epoch, so that the leader stops counting it (KIP-704)."""
    removed = not set(before.replicas) <= set(after.replicas)
    new_leader_epoch = leader != before.leader or removed or leader == restarted_broker != NO_LEADER
    last_known_leader = NO_LEADER
    if leader == NO_LEADER:
        last_known_leader = before.leader if before.leader != NO_LEADER else before.last_known_leader
    result = replace(
        after,
        in_sync=in_sync,
        leader=leader,
        leader_epoch=before.leader_epoch + new_leader_epoch,
        partition_epoch=before.partition_epoch,
        eligible=eligible,
        last_known_leader=last_known_leader,
        emptied=tuple(one for one in after.emptied if one != leader),
    )
    return before if result == before else replace(result, partition_epoch=before.partition_epoch + 1)


@safeguard("a reassignment completes when all target replicas are in sync")
def _completed(wanted: PartitionRecord) -> PartitionRecord:
    """A reassignment completes once all target replicas are in sync (KIP-455)."""
    if not wanted.is_reassigned:
        return wanted
    target = tuple(one for one in wanted.replicas if one not in wanted.removing)
    if not set(target) <= set(wanted.in_sync):
        return wanted
    return replace(wanted, replicas=target, in_sync=target, adding=(), removing=())


def _cleared_marks(before: PartitionRecord, wanted: PartitionRecord) -> PartitionRecord:
    """Clear marks of brokers without a replica. A replica that joins the in-sync set is no longer emptied. If
    all replicas are emptied, none lacks anything that another has, so that mark is cleared."""
    if not (wanted.offline or wanted.emptied or wanted.full):
        return wanted
    offline = _in_order(wanted.replicas, wanted.offline)
    emptied = _in_order(wanted.replicas, set(wanted.emptied) - (set(wanted.in_sync) - set(before.in_sync)))
    emptied = () if emptied == wanted.replicas else emptied
    return replace(wanted, offline=offline, emptied=emptied, full=_in_order(wanted.replicas, wanted.full))


def _last_in_sync(
    before: PartitionRecord,
    replicas: tuple[int, ...],
    complete: set[int],
    rules: ElectionRules,
    full: tuple[int, ...],
) -> tuple[int, ...]:
    """The in-sync set when all its members should leave: a replica with all committed records, if possible
    one that may lead. Without such a replica the members stay, because no other replica has more records."""
    members = _in_order(replicas, before.in_sync)
    candidates = [one for one in members if one in complete] + [
        one for one in replicas if one in complete and one not in members
    ]
    for one in _full_last(candidates, full):
        if one in rules.may_lead:
            return (one,)
    return tuple(candidates[:1]) or members


def _without_full(in_sync: tuple[int, ...], full: tuple[int, ...], rules: ElectionRules) -> tuple[int, ...]:
    """Remove replicas on full disks, which hold up the high watermark, unless no other one may lead."""
    others = tuple(one for one in in_sync if one not in full)
    return in_sync if rules.may_lead.isdisjoint(others) else others


def _full_last(members: Iterable[int], full: tuple[int, ...]) -> list[int]:
    return sorted(members, key=full.__contains__)


def _leader(
    before: int,
    replicas: tuple[int, ...],
    in_sync: tuple[int, ...],
    rules: ElectionRules,
    elect_preferred: bool,
) -> int:
    """A leader from the in-sync set. A broker in controlled shutdown stays the leader if no other can
    lead."""
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


def check_partition(partition: PartitionRecord, rules: ElectionRules) -> None:
    """Raise InvariantViolation if the state breaks an invariant of this module."""
    replicas, in_sync, eligible = set(partition.replicas), set(partition.in_sync), set(partition.eligible)
    require(len(replicas) == len(partition.replicas) > 0, f"{partition}: duplicate replicas, or none")
    require(bool(in_sync), f"{partition}: the in-sync set is empty")
    require(in_sync <= replicas, f"{partition}: in sync but not a replica")
    require(eligible <= replicas - in_sync, f"{partition}: eligible but in sync, or not a replica")
    require(partition.leader == NO_LEADER or partition.leader in in_sync, f"{partition}: leader not in sync")
    require(
        partition.leader == NO_LEADER or partition.last_known_leader == NO_LEADER,
        f"{partition}: a leader and a last leader",
    )
    marked = {*partition.offline, *partition.emptied}
    require(marked <= replicas, f"{partition}: offline or emptied, but not a replica")
    require(partition.leader not in marked, f"{partition}: the leader is offline or emptied")
    full = set(partition.full)
    require(full <= replicas, f"{partition}: full, but not a replica")
    could_lead = (in_sync & rules.may_lead) - marked - full
    require(not (could_lead and full & in_sync), f"{partition}: full, and in sync beside {could_lead}")
    moving = set(partition.adding) | set(partition.removing)
    require(moving <= replicas, f"{partition}: adding or removing what is not a replica")
    require(not set(partition.adding) & set(partition.removing), f"{partition}: adding and removing overlap")
    require(not moving or replicas > set(partition.removing), f"{partition}: removing all replicas")
