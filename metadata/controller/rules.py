"""What elections and in-sync sets are judged by: who may lead, the effective min.insync.replicas, whether an
unclean election is allowed.

min.insync.replicas decides which replicas hold everything committed (KIP-966), so the leader of a partition
must use the very number that the controller uses: `min_in_sync`. It is the topic's own setting, else the
cluster's, which the quorum keeps (`cluster_defaults`). No broker's own file changes it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from immutables import Map

from tierlog.config.definitions import Setting
from tierlog.config.topic import TOPIC_SETTINGS
from tierlog.metadata.image import ClusterImage, PartitionImage
from tierlog.metadata.records import ConfigScope

MIN_IN_SYNC, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
_NO_SETTINGS: Map[str, str] = Map()
_MIN_IN_SYNC, _UNCLEAN = TOPIC_SETTINGS[MIN_IN_SYNC], TOPIC_SETTINGS[UNCLEAN]


class ClusterDefaults(NamedTuple):
    """What counts for topics without a setting of their own."""

    min_in_sync: int
    unclean: bool


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """For the partitions of one topic."""

    live: frozenset[int]  # registered and not fenced
    may_lead: frozenset[int]  # and not about to stop
    min_in_sync: int
    unclean: bool

    def without(self, unfit: Collection[int]) -> "ElectionRules":
        """For a partition whose replicas on these brokers cannot lead."""
        if not unfit:
            return self
        return replace(self, live=self.live.difference(unfit), may_lead=self.may_lead.difference(unfit))

    def effective_min_isr(self, replicas: tuple[int, ...]) -> int:
        return min(self.min_in_sync, len(replicas))


def min_in_sync(image: ClusterImage, topic: str) -> int:
    """min.insync.replicas of a topic; a partition with fewer replicas needs only all of them."""
    return election_rules(image)(topic).min_in_sync


def is_under_min_isr(partition: PartitionImage, least: int) -> bool:
    """Whether the in-sync set is below the effective min.insync.replicas, so that nothing is committed."""
    return len(partition.in_sync) < min(least, len(partition.replicas))


def election_rules(image: ClusterImage) -> Callable[[str], ElectionRules]:
    """Topic name -> its rules; what all topics share is worked out once."""
    brokers = list(image.brokers.values())
    common = ElectionRules(
        frozenset(broker.broker_id for broker in brokers if not broker.fenced),
        frozenset(broker.broker_id for broker in brokers if broker.may_lead),
        *cluster_defaults(image),
    )

    def of(topic: str) -> ElectionRules:
        overrides = image.configs.get((ConfigScope.TOPIC, topic))
        if overrides is None or (MIN_IN_SYNC not in overrides and UNCLEAN not in overrides):
            return common
        return ElectionRules(
            live=common.live,
            may_lead=common.may_lead,
            min_in_sync=_number(overrides.get(MIN_IN_SYNC), _MIN_IN_SYNC, common.min_in_sync),
            unclean=_truth(overrides.get(UNCLEAN), common.unclean),
        )

    return of


def has_cluster_defaults(image: ClusterImage) -> bool:
    """The first registration writes min.insync.replicas, and nothing removes it."""
    return MIN_IN_SYNC in image.configs.get((ConfigScope.CLUSTER, ""), _NO_SETTINGS)


def cluster_defaults(image: ClusterImage) -> ClusterDefaults:
    """Those that the quorum keeps. In the image of a cluster that no node of this version has joined yet they
    are missing: then what the version before went by, the least min.insync.replicas of all registered
    brokers, and unclean election if all of them allow it."""
    cluster = image.configs.get((ConfigScope.CLUSTER, ""), _NO_SETTINGS)
    least, unclean = 1, False
    if not has_cluster_defaults(image):
        brokers = list(image.brokers.values())
        least = min((broker.min_in_sync for broker in brokers), default=1)
        unclean = bool(brokers) and all(broker.unclean_election for broker in brokers)
    return ClusterDefaults(
        min_in_sync=_number(cluster.get(MIN_IN_SYNC), _MIN_IN_SYNC, least),
        unclean=_truth(cluster.get(UNCLEAN), unclean),
    )


def _number(text: str | None, setting: Setting, default: int) -> int:
    value = default if text is None else setting.parse(text)
    return value if isinstance(value, int) else default


def _truth(text: str | None, default: bool) -> bool:
    return default if text is None else bool(_UNCLEAN.parse(text))
