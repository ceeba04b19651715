"""Features of the cluster (KIP-584): those that ApiVersions reports, and UpdateFeatures (v0-2).

`tierlog.format` is the version of the formats that the quorum writes; it can be raised. Kafka's own features
are reported too, because its tools and clients expect them. Most have exactly one supported level. A feature
of level 0 is missing, and as in Kafka not among the finalized ones. Clients rely on that: Java's producer
uses transactions v2 (KIP-890) if `transaction.version` is finalized at 2. Only clients use that level: the
coordinator handles each transaction as its requests' versions say.
"""

from enum import IntEnum
from typing import NamedTuple

from tierlog.broker.handlers.api_versions import Features
from tierlog.broker.handlers.context import Handler, Reply, RequestContext, controller_timeout_s, pending
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.metadata.controller.commands import UpdateFeatures
from tierlog.metadata.controller.features import FORMAT, KAFKA_FEATURES, level_of
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.versions import SUPPORTED_FORMATS
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

UPGRADE_TYPE_FROM = 1  # KIP-778; v0 has the flag allow_downgrade instead


class UpgradeType(IntEnum):
    """Kafka's numbers (KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class Feature(NamedTuple):
    min_version: int
    max_version: int
    level: int


def features_of(image: ClusterImage) -> Features:
    supported = _supported_features(image)
    return Features(
        {name: (feature.min_version, feature.max_version) for name, feature in supported.items()},
        {name: feature.level for name, feature in supported.items() if feature.level > 0},
        image.index,
    )


def _supported_features(image: ClusterImage) -> dict[str, Feature]:
    kafkas = {name: Feature(*levels, level_of(image, name)) for name, levels in KAFKA_FEATURES.items()}
    return {**kafkas, FORMAT: Feature(*SUPPORTED_FORMATS, image.format_version)}


def update_features_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: UpdateFeaturesRequest) -> Reply:
        """All updates or none: the first invalid one fails the whole request."""
        updates = {update.feature: update for update in request.feature_updates}
        for update in updates.values():
            refusal = _refusal(deps, update, context.version)
            if refusal is not None:
                return _refused(ErrorCode.INVALID_UPDATE_VERSION, update, refusal)
        current = _supported_features(deps.metadata.image)
        levels = {
            name: update.max_version_level
            for name, update in updates.items()
            if current[name].min_version < current[name].max_version
        }
        if levels:
            command = UpdateFeatures(levels=levels, validate_only=request.validate_only)
            reply = await deps.metadata.submit(command, controller_timeout_s(request.timeout_ms))
            if reply.error is not ErrorCode.NONE:
                refused = updates[FORMAT if FORMAT in levels else next(iter(levels))]
                return _refused(reply.error, refused, reply.message or reply.error.name)
        results = [
            UpdatableFeatureResult(feature=update.feature, error_message=None)
            for update in request.feature_updates
        ]
        return UpdateFeaturesResponse(error_message=None, results=results)

    return handle


def _refusal(deps: Dependencies, update: FeatureUpdateKey, version: int) -> str | None:
    """Why an update is invalid, in Kafka's order and words. The controller checks that all nodes support a
    version of `tierlog.format`."""
    kind, level = update.upgrade_type, update.max_version_level
    if version < UPGRADE_TYPE_FROM:
        kind = UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
    if kind not in set(UpgradeType):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    here = f"Local controller {deps.settings.node_id}"
    feature = _supported_features(deps.metadata.image).get(update.feature)
    if feature is None:
        return f"{here} does not support this feature."
    if not feature.min_version <= level <= feature.max_version:
        return f"{here} only supports versions {feature.min_version}-{feature.max_version}"
    if level < feature.level and kind == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or"
            " unsafe downgrade."
        )
    if level > feature.level and kind != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    return None


def _refused(code: ErrorCode, update: FeatureUpdateKey, why: str) -> UpdateFeaturesResponse:
    message = (
        "The update failed for all features since the following feature had an error: Invalid update version"
        f" {update.max_version_level} for feature {update.feature}. {why}"
    )
    return UpdateFeaturesResponse(error_code=code, error_message=message)
