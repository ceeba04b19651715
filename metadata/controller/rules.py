"""Election rules: which brokers may lead, the effective min.insync.replicas, and whether unclean election is
on.

min.insync.replicas decides which replicas have all committed records (KIP-966). The leader of a partition
must therefore use the same number as the controller: `min_in_sync`. It is the topic's setting, or else the
cluster's, which the quorum stores (`cluster_defaults`). A broker's configuration file does not change it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from immutables import Map

from tierlog.base.safeguards import safeguard
from tierlog.config.definitions import Setting
from tierlog.config.topic import TOPIC_SETTINGS
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigScope, PartitionRecord

MIN_IN_SYNC, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
_NO_SETTINGS: Map[str, str] = Map()
_MIN_IN_SYNC, _UNCLEAN = TOPIC_SETTINGS[MIN_IN_SYNC], TOPIC_SETTINGS[UNCLEAN]


class ClusterDefaults(NamedTuple):
    """Values for topics without a setting of their own."""

    min_in_sync: int
    unclean: bool


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """The rules for the partitions of one topic."""

    live: frozenset[int]  # registered and not fenced
    may_lead: frozenset[int]  # live, and not in controlled shutdown
    min_in_sync: int
    unclean: bool

    def excluding(self, broker_ids: Collection[int]) -> "ElectionRules":
        """The rules for a partition whose replicas on these brokers cannot lead."""
        if not broker_ids:
            return self
        return replace(
            self, live=self.live.difference(broker_ids), may_lead=self.may_lead.difference(broker_ids)
        )

    @safeguard("eligible leader replicas need min.insync.replicas")
    def effective_min_isr(self, replicas: tuple[int, ...]) -> int:
        return min(self.min_in_sync, len(replicas))


def min_in_sync(image: ClusterImage, topic: str) -> int:
    """min.insync.replicas of a topic. A partition with fewer replicas needs only all of them."""
    return election_rules(image)(topic).min_in_sync


def is_under_min_isr(partition: PartitionRecord, min_in_sync: int) -> bool:
    """Whether the in-sync set is below the effective min.insync.replicas, so that nothing commits."""
    return len(partition.in_sync) < min(min_in_sync, len(partition.replicas))


def election_rules(image: ClusterImage) -> Callable[[str], ElectionRules]:
    """Function from a topic's name to its rules. Everything that topics share is computed once."""
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
    """Whether the quorum stores the defaults: the first registration writes them, and they stay."""
    return MIN_IN_SYNC in image.configs.get((ConfigScope.CLUSTER, ""), _NO_SETTINGS)


@safeguard("unclean leader election is a cluster-wide setting")
def cluster_defaults(image: ClusterImage) -> ClusterDefaults:
    """The defaults that the quorum stores.

    Before a node of this version has joined the cluster they are missing. The older version's rule applies
    then: the smallest min.insync.replicas of all registered brokers, and unclean election if all brokers
    allow it.
    """
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
