"""ApiVersions: advertises the APIs that have a handler."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tierlog.broker.handlers.context import Handler, RequestContext
from tierlog.protocol.api import APIS
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")  # KIP-511
NO_VERSION_LIMITS: Mapping[int, tuple[int, int]] = {}


class Features(NamedTuple):
    """KIP-584. `supported`: (minimum, maximum) level that this node supports; `finalized`: the current level.

    A greater `epoch` is newer; -1: unknown.
    """

    supported: Mapping[str, tuple[int, int]] = {}
    finalized: Mapping[str, int] = {}
    epoch: int = -1


def api_versions_handler(
    keys: Iterable[int],
    *,
    features: Callable[[], Features] = Features,
    limits: Mapping[int, tuple[int, int]] = NO_VERSION_LIMITS,
) -> Handler:
    """A handler that advertises these keys and the current features.

    `limits`: narrower version range to advertise for a key.
    """
    ranges = {key: limits.get(key, (APIS[key].min_version, APIS[key].max_version)) for key in sorted(keys)}

    def handle(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        if context.version >= 3:
            software = request.client_software_name, request.client_software_version
            if not all(map(SOFTWARE_NAME.fullmatch, software)):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            context.connection.client_software, context.connection.client_software_version = software
        supported, finalized, epoch = features()
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=key, min_version=min_version, max_version=max_version)
                for key, (min_version, max_version) in ranges.items()
            ],
            supported_features=[
                SupportedFeatureKey(name=name, min_version=min_version, max_version=max_version)
                for name, (min_version, max_version) in supported.items()
                # KAFKA-17011: a client that uses version 3 rejects a minimum of 0
                if min_version > 0 or context.version >= 4
            ],
            finalized_features_epoch=epoch,
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in finalized.items()
            ],
        )

    return handle
