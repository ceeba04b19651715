"""Safeguards against bits that flip on disks, where no CRC covers them too."""

from simulator.switches import Patches, safeguard
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.broker.maintenance.log_repair import LogRepair
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage import recovery
from tierlog.broker.storage.core.continuity import HeaderRules
from tierlog.metadata.image import PartitionImage


@safeguard("a batch has the leader epoch that its log knows", "a flipped epoch is served and replicated")
def _() -> Patches:
    yield LeaderEpochs, "allows", lambda *_: True


@safeguard("a batch begins where the one before it ends", "records move to other offsets")
def _() -> Patches:
    yield HeaderRules, "fault", lambda rules, header, expected: rules.epoch_fault(header)


@safeguard("a damaged replica is in sync no more when it is cut", "a replica leads that lacks records")
def _() -> Patches:
    go_on = LogRepair._continue

    async def without(repair: LogRepair, replica: Replica, tries: int) -> bool:
        return repair._truncate(replica) if replica.is_follower else await go_on(repair, replica, tries)

    yield LogRepair, "_continue", without


@safeguard("a log that ends below its checkpoints is damaged", "a replica leads that lacks records")
def _() -> Patches:
    yield recovery, "_missing_end", lambda *_: 0


@safeguard("repair leaves what is whole", "replicas that are damaged at different places lose each other's")
def _() -> Patches:
    """All from the damage on is given up, as soon as another one is in sync."""

    async def is_elsewhere(repair: LogRepair, replica: Replica, partition: PartitionImage) -> bool:
        return bool(repair._others(partition))

    async def without(repair: LogRepair, replica: Replica, tries: int) -> bool:
        return await repair._prepare_truncation(replica)

    yield LogRepair, "_is_elsewhere", is_elsewhere
    yield LogRepair, "_continue", without
