"""Features (KIP-584): reported by ApiVersions, changed or refused by UpdateFeatures."""

from typing import Any

import pytest
from admin_cluster import AdminCluster

from tierlog.broker.handlers.features import features_of
from tierlog.metadata.controller.features import FORMAT, KAFKA_FEATURES
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.versions import SUPPORTED_FORMATS
from tierlog.protocol.errors import ErrorCode as E

UPGRADE, SAFE_DOWNGRADE = 1, 2


async def update(cluster: AdminCluster, version: int, *updates: dict[str, Any], **more: Any) -> Any:
    return await cluster.ask("UpdateFeatures", version, feature_updates=list(updates), **more)


def to(level: int, feature: str = FORMAT, **more: Any) -> dict[str, Any]:
    return {"feature": feature, "max_version_level": level, **more}


@pytest.mark.parametrize("version", [3, 4])
async def test_api_versions_reports_features(cluster: AdminCluster, version: int) -> None:
    """Those with a least of 0 only from version 4 on, as in Kafka: older clients refuse such a range."""
    answer = await cluster.ask("ApiVersions", version, client_software_name="t", client_software_version="1")
    supported = {one.name: (one.min_version, one.max_version) for one in answer.supported_features}
    finalized = {one.name: one.max_version_level for one in answer.finalized_features}
    assert finalized == {
        FORMAT: 1,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "metadata.version": 30,
        "transaction.version": 2,
    }
    from_zero = {name: levels for name, levels in KAFKA_FEATURES.items() if levels.lowest == 0}
    others = {name: levels for name, levels in KAFKA_FEATURES.items() if levels.lowest > 0}
    assert supported == others | {FORMAT: SUPPORTED_FORMATS} | (from_zero if version == 4 else {})
    assert (from_zero["group.version"], from_zero["transaction.version"]) == ((0, 1), (0, 2))
    assert answer.finalized_features_epoch == cluster.metadata.image.index


def test_finalized_format_is_that_of_the_image() -> None:
    image = ClusterImage(cluster_id="c", index=7, format_version=3)
    features = features_of(image)
    assert (features.supported[FORMAT], features.finalized[FORMAT], features.epoch) == (
        SUPPORTED_FORMATS,
        3,
        7,
    )


@pytest.mark.parametrize("feature", KAFKA_FEATURES)
async def test_unsupported_level_is_refused(cluster: AdminCluster, feature: str) -> None:
    lowest, highest = KAFKA_FEATURES[feature]
    assert (await update(cluster, 2, to(highest, feature))).error_code == E.NONE
    for other in (lowest - 1, highest + 1):
        for kind in (UPGRADE, SAFE_DOWNGRADE, 3):
            answer = await update(cluster, 2, to(other, feature, upgrade_type=kind))
            assert answer.error_code == E.INVALID_UPDATE_VERSION


TRANSACTIONS = "transaction.version"


async def finalized_transactions(cluster: AdminCluster) -> int:
    """0: it is not among the finalized features."""
    answer = await cluster.ask("ApiVersions", 4, client_software_name="t", client_software_version="1")
    return {one.name: one.max_version_level for one in answer.finalized_features}.get(TRANSACTIONS, 0)


async def test_transaction_version_is_lowered_and_raised(cluster: AdminCluster) -> None:
    refused = await update(cluster, 2, to(1, TRANSACTIONS))
    assert refused.error_code == E.INVALID_UPDATE_VERSION
    assert "Can't downgrade the version of this feature" in refused.error_message
    for level in (1, 0):
        lowered = to(level, TRANSACTIONS, upgrade_type=SAFE_DOWNGRADE)
        checked = await update(cluster, 2, lowered, validate_only=True)
        assert (checked.error_code, await finalized_transactions(cluster)) == (E.NONE, level + 1)
        assert (await update(cluster, 2, lowered)).error_code == E.NONE
        assert await finalized_transactions(cluster) == level
    assert dict(cluster.metadata.image.feature_levels) == {TRANSACTIONS: 0}
    refused = await update(cluster, 2, to(2, TRANSACTIONS, upgrade_type=SAFE_DOWNGRADE))
    assert "Can't downgrade to a newer version" in refused.error_message
    assert (await update(cluster, 2, to(2, TRANSACTIONS))).error_code == E.NONE
    assert await finalized_transactions(cluster) == 2
    assert not cluster.metadata.image.feature_levels, "an older tierlog reads the image again"


async def test_no_feature_changes_if_one_is_refused(cluster: AdminCluster) -> None:
    lowered = to(1, TRANSACTIONS, upgrade_type=SAFE_DOWNGRADE)
    # This broker supports the format; another one that is registered does not.
    answer = await update(cluster, 2, lowered, to(2))
    assert answer.error_code == E.INVALID_UPDATE_VERSION
    assert await finalized_transactions(cluster) == 2


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_current_version_is_accepted(cluster: AdminCluster, version: int) -> None:
    for check in (True, False):
        more = {"validate_only": check} if version else {}
        answer = await update(cluster, version, to(1), **more)
        assert answer.error_code == E.NONE
        assert [(one.feature, one.error_code) for one in answer.results] == (
            [(FORMAT, 0)] if version < 2 else []
        )


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    "wrong",
    [to(2), to(0), to(-1), to(22, "metadata.version"), to(0, "nothing")],
    ids=lambda wrong: f"{wrong['feature']}-{wrong['max_version_level']}",
)
async def test_unsupported_version_refuses_the_whole_request(
    cluster: AdminCluster, version: int, wrong: dict[str, Any]
) -> None:
    updates = [to(1), wrong] if wrong["feature"] != FORMAT else [wrong]
    answer = await update(cluster, version, *updates)
    assert (answer.error_code, answer.results) == (E.INVALID_UPDATE_VERSION, [])
    if version == 2:
        assert wrong["feature"] in answer.error_message


@pytest.mark.parametrize("kind", [0, 9, SAFE_DOWNGRADE])
async def test_downgrade_cannot_raise_a_version(cluster: AdminCluster, kind: int) -> None:
    answer = await update(cluster, 2, to(2, upgrade_type=kind))
    assert answer.error_code == E.INVALID_UPDATE_VERSION
    answer = await update(cluster, 0, to(2, allow_downgrade=True))
    assert answer.error_code == E.INVALID_UPDATE_VERSION
