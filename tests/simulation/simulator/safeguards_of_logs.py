"""Safeguards against bits that flip on disks, where no CRC covers them too."""

from simulator.switches import Patches, safeguard
from tierlog.broker.log import recovery
from tierlog.broker.partition.continuity import HeaderRules
from tierlog.broker.partition.epochs import LeaderEpochs
from tierlog.broker.runtime.log_repair import LogRepair
from tierlog.broker.runtime.replica import Replica


@safeguard("a batch has the leader epoch that its log knows", "a flipped epoch is served and replicated")
def _() -> Patches:
    yield LeaderEpochs, "allows", lambda *_: True


@safeguard("a batch begins where the one before it ends", "records move to other offsets")
def _() -> Patches:
    yield HeaderRules, "fault", lambda rules, header, expected: rules.epoch_fault(header)


@safeguard("a damaged replica is in sync no more when it is cut", "a replica leads that lacks records")
def _() -> Patches:
    go_on = LogRepair._go_on

    async def without(repair: LogRepair, replica: Replica) -> bool:
        return repair._cut(replica) if replica.follows else await go_on(repair, replica)

    yield LogRepair, "_go_on", without


@safeguard("a log that ends below its checkpoints is damaged", "a replica leads that lacks records")
def _() -> Patches:
    yield recovery, "_missing_end", lambda *_: 0
