"""The cluster's features (KIP-584): what ApiVersions reports of them, and UpdateFeatures (v0-2).

`tierlog.format` is the version of the formats that the quorum writes; it can be raised. Kafka's own features
are reported for its tools and clients as far as what they stand for is served: each has one level, which
UpdateFeatures accepts and does not change. A level of 0 means that the feature is not there; as in Kafka it
is not among the finalized ones. Java's producer, for one, uses transactions v2 (KIP-890) where
`transaction.version` is finalized at 2.
"""

from enum import IntEnum
from typing import NamedTuple

from tierlog.broker.handlers.api_versions import Features
from tierlog.broker.handlers.context import Handler, Reply, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.request_timeouts import within_s
from tierlog.metadata.controller.brokers import SUPPORTED_FORMATS
from tierlog.metadata.controller.commands import UpdateFormat
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

FORMAT = "tierlog.format"
KAFKA_FEATURES = {
    "eligible.leader.replicas.version": 1,  # KIP-966
    "group.version": 0,  # KIP-848: consumer groups by ConsumerGroupHeartbeat are not served
    "kraft.version": 0,  # KIP-853: voters change by `tierlog quorum`, not by AddRaftVoter
    "metadata.version": 30,  # 4.3-IV0: the release whose broker requests are answered alike
    "share.version": 0,  # KIP-932: share groups are not served
    "streams.version": 0,  # KIP-1071: streams groups are not served
    "transaction.version": 0,  # KIP-890: there is no transaction coordinator
}
"""Kafka's features, each at the one level that is served."""

UPGRADE_TYPE_FROM = 1  # before, a flag allowed downgrades


class UpgradeType(IntEnum):
    """Numbered as in UpdateFeatures (KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class Feature(NamedTuple):
    least: int
    most: int
    level: int


def features_of(image: ClusterImage) -> Features:
    known = _known(image)
    return Features(
        {name: (feature.least, feature.most) for name, feature in known.items()},
        {name: feature.level for name, feature in known.items() if feature.level > 0},
        image.index,
    )


def _known(image: ClusterImage) -> dict[str, Feature]:
    kafkas = {name: Feature(level, level, level) for name, level in KAFKA_FEATURES.items()}
    return {**kafkas, FORMAT: Feature(*SUPPORTED_FORMATS, image.format_version)}


def update_features_handler(deps: Dependencies) -> Handler:
    async def handle(context: RequestContext, request: UpdateFeaturesRequest) -> Reply:
        """All or none: the first that cannot be refuses the whole request."""
        updates = {update.feature: update for update in request.feature_updates}
        for update in updates.values():
            refusal = _refusal(deps, update, context.version)
            if refusal is not None:
                return _refused(ErrorCode.INVALID_UPDATE_VERSION, update, refusal)
        if FORMAT in updates:
            level = updates[FORMAT].max_version_level
            command = UpdateFormat(version=level, validate_only=request.validate_only)
            reply = await deps.metadata.submit(command, within_s(request.timeout_ms))
            if reply.error is not ErrorCode.NONE:
                return _refused(reply.error, updates[FORMAT], reply.message or reply.error.name)
        results = [
            UpdatableFeatureResult(feature=update.feature, error_message=None)
            for update in request.feature_updates
        ]
        return UpdateFeaturesResponse(error_message=None, results=results)

    return handle


def _refusal(deps: Dependencies, update: FeatureUpdateKey, version: int) -> str | None:
    """In Kafka's order and words. What the other nodes know of `tierlog.format` the controller checks."""
    kind, level = update.upgrade_type, update.max_version_level
    if version < UPGRADE_TYPE_FROM:
        kind = UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
    if kind not in set(UpgradeType):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    here = f"Local controller {deps.settings.node_id}"
    feature = _known(deps.metadata.image).get(update.feature)
    if feature is None:
        return f"{here} does not support this feature."
    if not feature.least <= level <= feature.most:
        return f"{here} only supports versions {feature.least}-{feature.most}"
    if level < feature.level and kind == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or"
            " unsafe downgrade."
        )
    return None


def _refused(code: ErrorCode, update: FeatureUpdateKey, why: str) -> UpdateFeaturesResponse:
    message = (
        "The update failed for all features since the following feature had an error: Invalid update version"
        f" {update.max_version_level} for feature {update.feature}. {why}"
    )
    return UpdateFeaturesResponse(error_code=code, error_message=message)
