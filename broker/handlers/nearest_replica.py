"""Rack-aware replica selector (KIP-392): an in-sync replica in the consumer's rack, if there is one.

Racks are `zone` or `zone/host`; only the zone counts, since traffic within a zone is free. The leader names
the replica, and the consumer reads from it until that broker redirects it. Called by the Fetch handler if the
consumer has a rack and `replica.selector.class` is the rack-aware selector.
"""

from tierlog.broker.replication.core.in_sync import Follower
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.image import BrokerImage, ClusterImage, zone_of

LEADER_ITSELF = -1


def nearest_replica(image: ClusterImage, here: int, replica: Replica, rack: str, offset: int) -> int:
    """The broker in that rack with an in-sync replica that has the offset; of several, the one with the
    highest log end. LEADER_ITSELF if there is none, or if the leader (this broker, `here`) is in that rack.
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
    return max(near, key=_progress).broker_id if near else LEADER_ITSELF


def _is_near(broker: BrokerImage, rack: str) -> bool:
    zone = zone_of(rack)  # empty for "/r1", which other systems use
    return broker.rack == rack or (zone != "" and broker.zone == zone)


def _progress(follower: Follower) -> tuple[int, int, int]:
    return follower.end_offset, follower.caught_up_ms, -follower.broker_id
