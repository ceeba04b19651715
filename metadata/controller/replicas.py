"""Replica reports of brokers: a log directory has failed (KIP-858), is full, or a replica's log is gone.

- Failed: the replica neither leads nor joins an in-sync set until its broker registers again. The broker's
  other replicas are not affected.
- Emptied: a replica that restarted with an empty log does not lead until it was in sync again. If no other
  replica was in sync, the partition waits for an unclean election among the others, because the empty replica
  would truncate what they still have. If all replicas are empty, any of them leads.
- Full: the replica has all its records and serves reads. It hands its leadership over to a replica with free
  space, if there is one. The mark stays, also over restarts, until the broker reports free space.
"""

from collections.abc import Callable, Iterable
from uuid import UUID

from msgspec.structs import replace

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.brokers import current_broker
from tierlog.metadata.controller.decision import Decision, Refusal, done
from tierlog.metadata.controller.election import without_in_sync
from tierlog.metadata.controller.partition_change import build_partition_change
from tierlog.metadata.controller.rules import ElectionRules, election_rules
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import PartitionRecord
from tierlog.protocol.errors import ErrorCode

MAX_REPLICAS_PER_REPORT = 5_000
"""So that the records fit into one log entry."""


def report(image: ClusterImage, command: c.ReportReplicas) -> Decision[c.Acknowledged]:
    """A report may be repeated. Partitions that no longer exist, or have no replica on the broker, are
    ignored. Raises Refusal."""
    broker_id = command.broker_id
    current_broker(image, broker_id, command.broker_epoch)
    kinds = (command.failed, command.emptied, command.full, command.has_space)
    if sum(map(len, kinds)) > MAX_REPLICAS_PER_REPORT:
        message = f"a report names {MAX_REPLICAS_PER_REPORT} replicas at most"
        raise Refusal(ErrorCode.INVALID_REQUEST, message)
    rules = election_rules(image)
    pending: dict[tuple[UUID, int], PartitionRecord] = {}

    def change(
        named: Iterable[tuple[UUID, int]],
        next_state: Callable[[PartitionRecord, ElectionRules], PartitionRecord],
    ) -> None:
        for key in named:
            topic, before = image.topics.get(key[0]), pending.get(key) or image.partition(*key)
            if topic is None or before is None or broker_id not in before.replicas:
                continue
            after = next_state(before, rules(topic.name))
            if after is not before:
                pending[key] = after

    def failed(before: PartitionRecord, rules: ElectionRules) -> PartitionRecord:
        if broker_id in before.offline:
            return before
        offline = (*before.offline, broker_id)
        return build_partition_change(
            before, replace(without_in_sync(before, broker_id), offline=offline), rules
        )

    def emptied(before: PartitionRecord, rules: ElectionRules) -> PartitionRecord:
        marked = before.emptied if broker_id in before.emptied else (*before.emptied, broker_id)
        wanted = replace(without_in_sync(before, broker_id), emptied=marked)
        return build_partition_change(before, wanted, rules, ineligible=frozenset({broker_id}))

    def full(before: PartitionRecord, rules: ElectionRules) -> PartitionRecord:
        marked = before.full if broker_id in before.full else (*before.full, broker_id)
        return build_partition_change(before, replace(before, full=marked), rules)

    def has_space(before: PartitionRecord, rules: ElectionRules) -> PartitionRecord:
        left = tuple(one for one in before.full if one != broker_id)
        return build_partition_change(before, replace(before, full=left), rules)

    change(command.failed, failed)
    change(command.emptied, emptied)
    change(command.full, full)
    change(command.has_space, has_space)
    return done(*pending.values())
