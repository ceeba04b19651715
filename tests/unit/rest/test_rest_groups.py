"""Lists of groups: one request for many groups, and groups that have moved or gone since they were listed."""

from types import SimpleNamespace
from typing import Any, cast

from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import consumer_group_describe, describe_groups
from tierlog.rest.groups import CLASSIC, CONSUMER, Listed, describe_all


class StubCluster:
    """Node 1 coordinates all groups but `moved`, of node 2; `gone` does not exist. `requests`: node and
    groups of each."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, list[str]]] = []

    async def call(self, request: Any, node_id: int) -> Any:
        if isinstance(request, consumer_group_describe.ConsumerGroupDescribeRequest):
            return self._consumer(request.group_ids, node_id)
        self.requests.append((node_id, request.groups))
        rows = [self._classic(name, node_id) for name in request.groups]
        return describe_groups.DescribeGroupsResponse(groups=rows)

    async def at_coordinator(self, group: str, request: Any, error: Any) -> tuple[int, Any]:
        node = 2 if group == "moved" else 1
        return node, await self.call(request, node)

    async def shared(self) -> Any:
        return SimpleNamespace(version=lambda api: 1)

    def _consumer(self, names: list[str], node: int) -> Any:
        self.requests.append((node, names))
        rows = [
            consumer_group_describe.DescribedGroup(
                group_id=name,
                group_state="Stable",
                error_code=ErrorCode.NONE if name.startswith("new") else ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=None,
                group_epoch=1,
                assignment_epoch=1,
                assignor_name="uniform",
                members=[],
            )
            for name in names
        ]
        return SimpleNamespace(groups=rows)

    def _classic(self, name: str, node: int) -> describe_groups.DescribedGroup:
        code = ErrorCode.NOT_COORDINATOR if name == "moved" and node == 1 else ErrorCode.NONE
        state = "Dead" if name == "gone" else "PreparingRebalance"
        return describe_groups.DescribedGroup(
            error_code=code,
            group_id=name,
            group_state=state,
            protocol_type="consumer",
            protocol_data="range",
            members=[],
        )


async def test_groups_of_a_coordinator_share_a_request_and_others_are_looked_for() -> None:
    cluster = StubCluster()
    names = [f"old-{number:03}" for number in range(150)]
    wanted = dict.fromkeys([*names, "moved", "gone"], Listed(1, is_consumer=False))
    wanted |= dict.fromkeys(["new-1", "new-2"], Listed(1, is_consumer=True))
    found = await describe_all(cast(Any, cluster), wanted)
    assert [group.group_id for group in found] == ["moved", "new-1", "new-2", *names]
    assert [group.coordinator for group in found[:2]] == [2, 1]
    assert [group.kind for group in found[:2]] == [CLASSIC, CONSUMER]
    assert found[0].state == "PREPARING_REBALANCE"
    sizes = sorted(len(groups) for _, groups in cluster.requests)
    assert sizes == [1, 1, 1, 1, 2, 52, 100]
