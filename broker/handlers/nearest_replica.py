"""Which replica a consumer had better read from: one in its own rack, if any is in sync (KIP-392).

Racks are `zone` or `zone/host`, of brokers and of consumers, and what counts is the zone: a host is no place
that a client could name, and within a zone traffic costs nothing. The leader names the replica, and the
consumer goes there until that broker sends it back. Called by the Fetch handler
for consumers that say where they are, if `replica.selector.class` is the rack-aware one.
"""

from tierlog.broker.replication.core.in_sync import Follower
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.image import BrokerImage, ClusterImage, zone_of

LEADER_ITSELF = -1


def nearest_replica(image: ClusterImage, here: int, replica: Replica, rack: str, offset: int) -> int:
    """The broker in that rack that is in sync and has the offset, of several the one that is furthest; -1 if
    that is this broker, `here`, whose replica leads, or if there is none.
    """
    leader = image.brokers.get(here)
    if leader is None or _is_near(leader, rack):
        return LEADER_ITSELF
    near = [
        follower
        for broker_id, follower in replica.followers.items()
        if broker_id in replica.in_sync
        and (broker := image.brokers.get(broker_id)) is not None
        and _is_near(broker, rack)
        and not broker.fenced
        and follower.log_start_offset <= offset <= follower.end_offset
    ]
    return max(near, key=_how_far).broker_id if near else LEADER_ITSELF


def _is_near(broker: BrokerImage, rack: str) -> bool:
    zone = zone_of(rack)  # of "/r1", as other systems write racks, there is none
    return broker.rack == rack or (zone != "" and broker.zone == zone)


def _how_far(follower: Follower) -> tuple[int, int, int]:
    return follower.end_offset, follower.caught_up_ms, -follower.broker_id
