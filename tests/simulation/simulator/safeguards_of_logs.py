"""Safeguards against bit rot: flipped bits on disk, also in the fields that no CRC covers."""

from simulator.switches import Patches, safeguard
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.broker.maintenance.log_repair import LogRepair
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage import recovery
from tierlog.broker.storage.core.continuity import HeaderRules
from tierlog.metadata.records import PartitionRecord


@safeguard(
    "a batch's leader epoch must match the leader epoch cache",
    "a batch with a damaged leader epoch is served and replicated",
)
def _() -> Patches:
    yield LeaderEpochs, "allows", lambda *_: True


@safeguard("a batch's base offset must follow the previous batch", "records move to other offsets")
def _() -> Patches:
    yield HeaderRules, "fault", lambda rules, header, expected: rules.epoch_fault(header)


@safeguard(
    "a damaged replica leaves the ISR before it is truncated", "a replica that lacks records becomes leader"
)
def _() -> Patches:
    repair_step = LogRepair._continue

    async def without(repair: LogRepair, replica: Replica, tries: int) -> bool:
        return repair._truncate(replica) if replica.is_follower else await repair_step(repair, replica, tries)

    yield LogRepair, "_continue", without


@safeguard(
    "a log that ends below its checkpoints is reported as damaged",
    "a replica that lacks records becomes leader",
)
def _() -> Patches:
    yield recovery, "_missing_end", lambda *_: 0


@safeguard(
    "log repair keeps batches that are intact",
    "replicas damaged in different places lose records that one of them had",
)
def _() -> Patches:
    """Repair truncates at the damage as soon as another replica is in sync."""

    async def is_elsewhere(repair: LogRepair, replica: Replica, partition: PartitionRecord) -> bool:
        return bool(repair._complete_replicas(partition))

    async def without(repair: LogRepair, replica: Replica, tries: int) -> bool:
        return await repair._prepare_truncation(replica)

    yield LogRepair, "_is_served_elsewhere", is_elsewhere
    yield LogRepair, "_continue", without
