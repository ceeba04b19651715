"""Levels of Kafka's features (KIP-584), which UpdateFeatures changes.

A cluster that never set the level of a feature has the highest. Only levels that were set are in the image,
so that a cluster without them can be read by an older tierlog. Every function raises Refusal if the command
is not allowed.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tierlog.metadata import records as r
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.brokers import update_format
from tierlog.metadata.controller.decision import Decision, Refusal, done
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode

FORMAT = "tierlog.format"


class Levels(NamedTuple):
    lowest: int
    highest: int


KAFKA_FEATURES: Mapping[str, Levels] = {
    "eligible.leader.replicas.version": Levels(1, 1),  # KIP-966
    "group.version": Levels(0, 1),  # KIP-848
    "kraft.version": Levels(0, 0),  # KIP-853: `tierlog quorum` changes voters, not AddRaftVoter
    "metadata.version": Levels(30, 30),  # 4.3-IV0: broker requests are answered as by this release
    "share.version": Levels(0, 0),  # KIP-932: share groups are not supported
    "streams.version": Levels(0, 0),  # KIP-1071: streams groups are not supported
    "transaction.version": Levels(0, 2),  # KIP-890: clients bump epochs from level 2 on
}
"""Supported levels of Kafka's features."""


def level_of(image: ClusterImage, feature: str) -> int:
    """The current level of one of Kafka's features."""
    return image.feature_levels.get(feature, KAFKA_FEATURES[feature].highest)


def update(image: ClusterImage, command: c.UpdateFeatures) -> Decision[c.Acknowledged]:
    """Set all of these levels, or none. The broker has checked whether each may be lowered."""
    records: list[r.AnyRecord] = []
    for feature, level in sorted(command.levels.items()):
        if feature == FORMAT:
            records += update_format(image, c.UpdateFormat(version=level)).records
            continue
        supported = KAFKA_FEATURES.get(feature)
        if supported is None or not supported.lowest <= level <= supported.highest:
            raise Refusal(ErrorCode.INVALID_UPDATE_VERSION, f"{feature}: level {level} is not supported")
        if level != level_of(image, feature):
            stored = None if level == supported.highest else level
            records.append(r.FeatureLevel(name=feature, level=stored))
    return done() if command.validate_only else done(*records)
