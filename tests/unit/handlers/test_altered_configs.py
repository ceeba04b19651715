"""Settings of a node whose own file has values that do not fit together."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from admin_cluster import AdminCluster

from tierlog.broker.wire.errors import ErrorCode as E

BROKER, SET = 4, 0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[AdminCluster]:
    cluster = AdminCluster(tmp_path, **{"log.retention.ms": "10", "log.local.retention.ms": "11"})
    await cluster.start(1)
    yield cluster
    await cluster.close()


@pytest.mark.parametrize("resource", ["", "1"], ids=["of all", "of one"])
async def test_only_what_a_change_breaks_is_refused(cluster: AdminCluster, resource: str) -> None:
    async def alter(name: str, value: str) -> int:
        change = {"name": name, "config_operation": SET, "value": value}
        asked = {"resource_type": BROKER, "resource_name": resource, "configs": [change]}
        answer = await cluster.ask("IncrementalAlterConfigs", 1, resources=[asked], validate_only=False)
        return int(answer.responses[0].error_code)

    assert await alter("message.max.bytes", "5000") == E.NONE
    assert await alter("max.connections.per.ip.overrides", "here:5") == E.INVALID_REQUEST
    assert await alter("log.local.retention.ms", "9") == E.NONE
    assert await alter("log.local.retention.ms", "12") == E.INVALID_REQUEST
