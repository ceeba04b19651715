"""UpdateFeatures of `transaction.version`, and the levels that ApiVersions shows, in Kafka and in tierlog."""

from collections.abc import Iterator
from typing import Any

import pytest
from kafka_process import KafkaProcess
from waiting import until
from wire_client import Client

from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.api_versions import ApiVersionsRequest
from tierlog.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

FEATURE = "transaction.version"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
UPDATES = (
    (3, UPGRADE, False),
    (-1, SAFE_DOWNGRADE, False),
    (1, UPGRADE, False),
    (1, 0, False),
    (1, SAFE_DOWNGRADE, True),
    (1, SAFE_DOWNGRADE, False),
    (0, UNSAFE_DOWNGRADE, False),
    (0, UPGRADE, False),
    (1, SAFE_DOWNGRADE, False),
    (2, UPGRADE, True),
    (2, UPGRADE, False),
)
"""Level, upgrade type, and whether it is only validated. The last one restores the level of a new cluster."""


def answers(bootstrap: str) -> Iterator[Any]:
    client = Client(bootstrap)
    yield supported(client)
    for level, kind, validate_only in UPDATES:
        before = finalized(client)
        update = FeatureUpdateKey(feature=FEATURE, max_version_level=level, upgrade_type=kind)
        request = UpdateFeaturesRequest(feature_updates=[update], validate_only=validate_only)
        response = client.send("UpdateFeatures", 2, request)
        after = before if response.error_code or validate_only else level
        until(lambda after=after: finalized(client) == after, "Kafka shows a change a little later")  # type: ignore[misc]
        error = ErrorCode(response.error_code).name, response.error_message
        yield (level, kind), error, response.results, finalized(client)
    client.close()


def features(client: Client) -> Any:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    return client.send("ApiVersions", 4, request)


def supported(client: Client) -> Any:
    return [one for one in features(client).supported_features if one.name == FEATURE]


def finalized(client: Client) -> int:
    """0: it is not among the finalized features."""
    levels = {one.name: one.max_version_level for one in features(client).finalized_features}
    return levels.get(FEATURE, 0)


def test_transaction_version_changes_as_in_kafka(
    kafka: KafkaProcess, tierlog_session_broker: TierlogBroker
) -> None:
    by_kafka, by_tierlog = (list(answers(each.bootstrap)) for each in (kafka, tierlog_session_broker))
    assert by_tierlog == by_kafka
