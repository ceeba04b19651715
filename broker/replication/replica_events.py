"""Events of the replica manager: what happened to local replicas, besides the changes of an image.

app.py lists the receivers, in order. They are called on the event loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.log_dir import LogDirectory
from tierlog.broker.storage.segment import Damage, Segment


@dataclass(frozen=True, slots=True)
class ReplicasCreated:
    """Replicas were created in threads or after a full disk, later than the image that has them."""


@dataclass(frozen=True, slots=True)
class ReplicaRemoved:
    """A replica was deleted, moved to another broker, or failed. No other of its name exists yet."""

    replica: Replica


@dataclass(frozen=True, slots=True)
class DirectoryFailed:
    """A log directory and all its partitions are offline until the next start."""

    directory: LogDirectory


@dataclass(frozen=True, slots=True)
class PartitionsFailed:
    """Partitions are offline until the next start, for any reason."""


@dataclass(frozen=True, slots=True)
class DamageSuspected:
    """The log may be damaged at an offset."""

    replica: Replica
    offset: int
    why: str


@dataclass(frozen=True, slots=True)
class DamageFound:
    """A check has found damage in a segment, which is unchanged since. `cause`: what the check was for."""

    replica: Replica
    segment: Segment
    damage: Sequence[Damage]
    cause: str


@dataclass(frozen=True, slots=True)
class RemoteLogDiverges:
    """A replica was elected leader in this epoch, and leads once the manifest entries from this base offset
    on are removed: its log has other records."""

    replica: Replica
    leader_epoch: int
    from_offset: int


@dataclass(frozen=True, slots=True)
class ManifestUnread:
    """A replica was elected leader in this epoch, after the quorum was recovered, and leads once the manifest
    in the bucket has been read."""

    replica: Replica
    leader_epoch: int


ReplicaEvent = (
    ReplicasCreated
    | ReplicaRemoved
    | DirectoryFailed
    | PartitionsFailed
    | DamageSuspected
    | DamageFound
    | RemoteLogDiverges
    | ManifestUnread
)
OnReplicaEvent = Callable[[ReplicaEvent], None]
