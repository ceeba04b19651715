"""The cluster's features (KIP-584): what ApiVersions tells of them, and UpdateFeatures (v0-2).

There is one, the version of the formats that the quorum writes. Kafka's own (metadata.version and so on) are
levels of Kafka's metadata records, which are not written here: who updates one of them is refused, as by a
Kafka that does not know it.
"""

from enum import IntEnum

from tierlog.broker.handlers.api_versions import Features
from tierlog.broker.handlers.context import Handler, Reply, RequestContext
from tierlog.broker.handlers.deadlines import within_s
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.wire.errors import ErrorCode
from tierlog.broker.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tierlog.metadata.controller.brokers import SUPPORTED_FORMATS
from tierlog.metadata.controller.commands import UpdateFormat
from tierlog.metadata.image import ClusterImage

FORMAT = "tierlog.format"
UPGRADE_TYPE_FROM = 1  # before, a flag allowed downgrades


class UpgradeType(IntEnum):
    """Numbered as in UpdateFeatures (KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def features_of(image: ClusterImage) -> Features:
    return Features({FORMAT: SUPPORTED_FORMATS}, {FORMAT: image.format_version}, image.index)


def update_features_handler(deps: Dependencies) -> Handler:
    async def handle(context: RequestContext, request: UpdateFeaturesRequest) -> Reply:
        """All or none: the first that cannot be refuses the whole request."""
        updates = {update.feature: update for update in request.feature_updates}
        for update in updates.values():
            refusal = _refusal(deps.metadata.image, update, context.version)
            if refusal is not None:
                return _refused(ErrorCode.INVALID_UPDATE_VERSION, update, refusal)
        for update in updates.values():
            command = UpdateFormat(version=update.max_version_level, validate_only=request.validate_only)
            reply = await deps.metadata.submit(command, within_s(request.timeout_ms))
            if reply.error is not ErrorCode.NONE:
                return _refused(reply.error, update, reply.message or reply.error.name)
        results = [
            UpdatableFeatureResult(feature=update.feature, error_message=None)
            for update in request.feature_updates
        ]
        return UpdateFeaturesResponse(error_message=None, results=results)

    return handle


def _refusal(image: ClusterImage, update: FeatureUpdateKey, version: int) -> str | None:
    """What is wrong with it, besides the version itself: that the controller judges."""
    if update.feature != FORMAT:
        return f"this cluster knows only {FORMAT}"
    kind = update.upgrade_type
    if version < UPGRADE_TYPE_FROM:
        kind = UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
    if kind not in set(UpgradeType):
        return f"unknown type of upgrade {kind}"
    if update.max_version_level > image.format_version and kind != UpgradeType.UPGRADE:
        return "a downgrade goes to a lower version"
    return None


def _refused(code: ErrorCode, update: FeatureUpdateKey, why: str) -> UpdateFeaturesResponse:
    message = f"no feature is updated: {update.feature} to version {update.max_version_level}: {why}"
    return UpdateFeaturesResponse(error_code=code, error_message=message)
