"""Access checks for thousands of names: a bounded number between two turns of the event loop, and no decision
about them is kept."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from admin_cluster import AdminCluster
from loop_steps import LoopSteps
from wire_client import message

from tierlog.broker.handlers.context import (
    CLOSE,
    WHOLE_FRAME,
    Connection,
    Handler,
    Pending,
    RawReply,
    RequestContext,
)
from tierlog.broker.handlers.groups import group_handlers
from tierlog.broker.handlers.guard import guarded_handlers
from tierlog.broker.handlers.ordering import ORDER_OF, Order
from tierlog.broker.handlers.topic_partitions import describe_topic_partitions_handler
from tierlog.broker.handlers.topics import delete_topics_handler
from tierlog.broker.handlers.turns import ENTRIES_PER_TURN
from tierlog.broker.security.authorizer import OPERATIONS_OF, Access, Authorizer
from tierlog.metadata.acl_index import index_of
from tierlog.metadata.acls import (
    AccessControlEntry,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from tierlog.metadata.controller.commands import DeleteTopics
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import TopicCreated
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.codec import decode
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from tierlog.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from tierlog.protocol.messages.offset_commit import OffsetCommitResponse, OffsetCommitResponseTopic
from tierlog.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

COUNT = 5_000
NAMES = [f"{'mine' if n % 100 == 0 else 'other'}{n:04}" for n in range(COUNT)]
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
MINE = [name for name in NAMES if name.startswith("mine")]


class Node:
    """An authorizer that permits all operations on topics and groups whose name begins with `mine`."""

    def __init__(self) -> None:
        entries = [
            AccessControlEntry(
                resource=resource,
                pattern=PatternType.PREFIXED,
                name="mine",
                principal="User:ANONYMOUS",
                host="*",
                operation=AclOperation.ALL,
                permission=Permission.ALLOW,
            )
            for resource in (ResourceType.TOPIC, ResourceType.GROUP)
        ]
        self.image = ClusterImage(cluster_id="c", acls=index_of(entries))
        self.authorizer = Authorizer(self)
        self.most = 0
        self.errors: Counter[int] = Counter()

    def guarded(self, name: str, handler: Handler) -> Handler:
        stats = SimpleNamespace(for_api=lambda key: SimpleNamespace(errors=self.errors))
        deps: Any = SimpleNamespace(metadata=self, audit=None, stats=stats)
        key = BY_NAME[name].key
        return guarded_handlers({key: handler}, deps, self.authorizer)[key]

    async def ask(
        self, name: str, handler: Handler, fields: dict[str, Any], version: int | None = None
    ) -> Any:
        """The response. `most`: decisions between two turns."""
        api = BY_NAME[name]
        version = api.max_version if version is None else version
        context = RequestContext(api.key, version, 1, "c", Connection(1, "h", 1))
        context.access = Access(self.authorizer, "User:ANONYMOUS", "h")
        with LoopSteps("broker/security", functions=["allows"]) as steps:
            reply = handler(context, message(name, fields))
            if isinstance(reply, Pending):
                reply = await reply
        self.most = steps.most // 2  # both Access and Authorizer have it
        if isinstance(reply, RawReply):
            body = b"".join(bytes(part) for part in reply.parts)  # type: ignore[arg-type]
            reply = decode(api.response, version, body)
        return reply


@pytest.fixture
def node() -> Node:
    return Node()


def delete_groups(context: RequestContext, request: Any) -> Pending:
    async def work() -> DeleteGroupsResponse:
        await asyncio.sleep(0)
        return DeleteGroupsResponse(
            results=[DeletableGroupResult(group_id=group_id) for group_id in request.groups_names]
        )

    return Pending(work())


async def test_items_of_a_large_change_are_checked_in_turns(node: Node) -> None:
    guarded = node.guarded("DeleteGroups", delete_groups)
    answer = await node.ask("DeleteGroups", guarded, {"groups_names": NAMES})
    codes = {result.group_id: result.error_code for result in answer.results}
    denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert codes == {name: 0 if name in MINE else denied for name in NAMES}
    assert len(answer.results) == COUNT
    assert 0 < node.most <= ENTRIES_PER_TURN
    assert not node.authorizer._decisions


def commit(context: RequestContext, request: Any) -> OffsetCommitResponse:
    names = [topic.name for topic in request.topics]
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name=name) for name in names])


@pytest.mark.parametrize("name", ["OffsetCommit", "DeleteGroups"])
async def test_later_requests_wait_for_a_large_one(node: Node, name: str) -> None:
    api = BY_NAME[name]
    fields = (
        {"groups_names": NAMES}
        if name == "DeleteGroups"
        else {"group_id": "mine", "topics": [{"name": topic} for topic in NAMES]}
    )
    context = RequestContext(api.key, min(api.max_version, 9), 1, "c", Connection(1, "h", 1))
    guarded = node.guarded(name, delete_groups if name == "DeleteGroups" else commit)
    reply = guarded(context, message(name, fields))
    assert isinstance(reply, Pending)
    is_ordered = ORDER_OF[api.key] is Order.CHANGE
    assert (reply.blocks_later_until is None) == is_ordered
    await reply


async def test_topics_of_a_large_commit_are_checked_in_turns(node: Node) -> None:
    fields = {"group_id": "mine", "topics": [{"name": name} for name in NAMES]}
    answer = await node.ask("OffsetCommit", node.guarded("OffsetCommit", commit), fields, version=9)
    assert [topic.name for topic in answer.topics] == MINE + [name for name in NAMES if name not in MINE]
    assert 0 < node.most <= ENTRIES_PER_TURN
    assert len(node.authorizer._decisions) == 1  # about the group


def beat(context: RequestContext, request: Any) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(member_epoch=len(request.subscribed_topic_names))


@pytest.mark.parametrize("last", ["mine", "other"])
async def test_topics_of_a_large_heartbeat_are_checked_in_turns(node: Node, last: str) -> None:
    names = [f"mine{n}" for n in range(COUNT)] + [last]
    fields = {"group_id": "mine", "member_id": "m", "subscribed_topic_names": names}
    answer = await node.ask("ConsumerGroupHeartbeat", node.guarded("ConsumerGroupHeartbeat", beat), fields)
    if last == "mine":
        assert (answer.error_code, answer.member_epoch) == (0, len(names))
    else:
        assert answer.error_code == TOPIC_DENIED
    assert 0 < node.most <= ENTRIES_PER_TURN


class Appender:
    """A handler of Produce. `appended`, `replied`: futures that the test completes."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.appended: asyncio.Future[None] = loop.create_future()
        self.replied: asyncio.Future[Any] = loop.create_future()
        self.called = asyncio.Event()

    def handle(self, context: RequestContext, request: Any) -> Pending:
        assert [topic.name for topic in request.topic_data] == MINE
        self.called.set()
        return Pending(self.replied, WHOLE_FRAME, blocks_later_until=self.appended)


def produce(acks: int = -1) -> dict[str, Any]:
    data = [{"index": 0, "records": b""}]
    return {"acks": acks, "topic_data": [{"name": name, "partition_data": data} for name in NAMES]}


def produced(names: list[str]) -> ProduceResponse:
    partitions = [PartitionProduceResponse(index=0, base_offset=7)]
    return ProduceResponse(
        responses=[TopicProduceResponse(name=name, partition_responses=partitions) for name in names]
    )


async def test_topics_of_a_large_produce_are_checked_in_turns(node: Node) -> None:
    """Later requests of the producer wait until its batches are appended, and no longer."""
    api, appender = BY_NAME["Produce"], Appender()
    context = RequestContext(api.key, 9, 1, "c", Connection(1, "h", 1))
    with LoopSteps("broker/security", functions=["allows"]) as steps:
        reply = node.guarded("Produce", appender.handle)(context, message("Produce", produce()))
        assert isinstance(reply, Pending) and reply.keeps == WHOLE_FRAME
        waiting = asyncio.ensure_future(reply.work)
        await appender.called.wait()
    blocked = reply.blocks_later_until
    assert blocked is not None and not blocked.done()
    appender.appended.set_result(None)
    await blocked
    assert not waiting.done()
    appender.replied.set_result(produced(MINE))
    answer = await waiting
    body = b"".join(bytes(part) for part in answer.parts)
    answer = decode(api.response, 9, body)
    codes = {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}
    assert codes == {name: 0 if name in MINE else TOPIC_DENIED for name in NAMES}
    assert 0 < steps.most // 2 <= ENTRIES_PER_TURN
    assert node.errors[TOPIC_DENIED] == len(NAMES) - len(MINE)


@pytest.mark.parametrize("has_permitted", [True, False])
@pytest.mark.parametrize("is_pending", [True, False])
async def test_no_request_follows_a_large_produce_without_acknowledgements_that_is_denied(
    node: Node, has_permitted: bool, is_pending: bool
) -> None:
    def append(context: RequestContext, request: Any) -> Pending | None:
        assert has_permitted and [topic.name for topic in request.topic_data] == MINE
        appended, replied = asyncio.get_running_loop().create_future(), asyncio.Future[None]()
        appended.set_result(None)
        replied.set_result(None)
        return Pending(replied, WHOLE_FRAME, blocks_later_until=appended) if is_pending else None

    fields = produce(acks=0)
    if not has_permitted:
        fields["topic_data"] = [topic for topic in fields["topic_data"] if topic["name"] not in MINE]
    api = BY_NAME["Produce"]
    context = RequestContext(api.key, 9, 1, "c", Connection(1, "h", 1))
    reply = node.guarded("Produce", append)(context, message("Produce", fields))
    assert isinstance(reply, Pending) and reply.blocks_later_until is not None
    assert await reply is CLOSE
    await asyncio.sleep(0)
    assert not reply.blocks_later_until.done()


async def test_topic_that_appears_during_the_check_is_unknown(node: Node) -> None:
    """Nothing has checked its access when the handler finds it."""
    ids = [UUID(int=number) for number in range(1, COUNT)]
    node.image = evolve_all(node.image, [TopicCreated(topic_id=UUID(int=COUNT), name="mine0")])

    def append(context: RequestContext, request: Any) -> ProduceResponse:
        assert [topic.topic_id for topic in request.topic_data] == [UUID(int=COUNT)]
        partitions = [PartitionProduceResponse(index=0, base_offset=7)]
        return ProduceResponse(
            responses=[TopicProduceResponse(topic_id=UUID(int=COUNT), partition_responses=partitions)]
        )

    fields = produce()
    data = fields["topic_data"][0]["partition_data"]
    fields["topic_data"] = [{"topic_id": one, "partition_data": data} for one in (*ids, UUID(int=COUNT))]
    answer = await node.ask("Produce", node.guarded("Produce", append), fields, version=13)
    codes = {topic.topic_id: topic.partition_responses[0].error_code for topic in answer.responses}
    assert codes == {**dict.fromkeys(ids, ErrorCode.UNKNOWN_TOPIC_ID), UUID(int=COUNT): 0}
    assert node.errors[ErrorCode.UNKNOWN_TOPIC_ID] == len(ids)


@pytest.mark.parametrize("is_known", [True, False])
async def test_topic_id_that_was_unknown_at_the_check_does_not_reach_the_controller(
    node: Node, is_known: bool
) -> None:
    """The controller knows topics that this broker does not know yet, or did not when it checked access."""
    mine, other = UUID(int=1), UUID(int=2)
    node.image = evolve_all(node.image, [TopicCreated(topic_id=mine, name="mine0")])
    submitted: list[Any] = []

    async def submit(command: DeleteTopics, timeout_s: float) -> Any:
        submitted.extend(ref.topic_id for ref in command.topics)
        outcomes = [SimpleNamespace(name="", topic_id=mine, error=0, message=None) for _ in command.topics]
        return SimpleNamespace(topics=outcomes)

    node.submit = submit  # type: ignore[attr-defined]
    deps: Any = SimpleNamespace(metadata=node, quotas=SimpleNamespace(has_quota=lambda key: False))
    handler = delete_topics_handler(deps)

    def handle_later(context: RequestContext, request: Any) -> Any:
        if is_known:
            node.image = evolve_all(node.image, [TopicCreated(topic_id=other, name="other0")])
        return handler(context, request)

    fields = {"topics": [{"name": None, "topic_id": one} for one in (mine, other)]}
    answer = await node.ask("DeleteTopics", node.guarded("DeleteTopics", handle_later), fields)
    codes = {one.topic_id: one.error_code for one in answer.responses}
    assert codes == {mine: ErrorCode.NONE, other: ErrorCode.UNKNOWN_TOPIC_ID}
    assert submitted == [mine]


async def test_requests_after_a_large_produce_that_fails_wait_for_its_error(node: Node) -> None:
    def fail(context: RequestContext, request: Any) -> None:
        raise RuntimeError("broken")

    api = BY_NAME["Produce"]
    context = RequestContext(api.key, 9, 1, "c", Connection(1, "h", 1))
    reply = node.guarded("Produce", fail)(context, message("Produce", produce()))
    assert isinstance(reply, Pending) and reply.blocks_later_until is not None
    with pytest.raises(RuntimeError, match="broken"):
        await reply
    assert not reply.blocks_later_until.done()


async def test_large_change_without_a_permitted_item_does_not_reach_the_handler(node: Node) -> None:
    guarded = node.guarded("DeleteGroups", lambda context, request: pytest.fail("it was called"))
    names = [name for name in NAMES if name not in MINE]
    answer = await node.ask("DeleteGroups", guarded, {"groups_names": names})
    assert [result.group_id for result in answer.results] == names
    assert {result.error_code for result in answer.results} == {ErrorCode.GROUP_AUTHORIZATION_FAILED}


async def test_large_change_is_passed_on_as_it_is_if_all_is_permitted(node: Node) -> None:
    guarded = node.guarded("DeleteGroups", delete_groups)
    names = [f"mine{n}" for n in range(COUNT)]
    answer = await node.ask("DeleteGroups", guarded, {"groups_names": names})
    assert [(one.group_id, one.error_code) for one in answer.results] == [(name, 0) for name in names]
    assert node.most <= ENTRIES_PER_TURN


async def test_large_change_is_whole_again_if_the_handler_fails(node: Node) -> None:
    async def work() -> Any:
        raise RuntimeError("broken")

    seen: list[Any] = []

    def fail(context: RequestContext, request: Any) -> Pending:
        assert request.groups_names == MINE
        seen.append(request)
        return Pending(work())

    with pytest.raises(RuntimeError, match="broken"):
        await node.ask("DeleteGroups", node.guarded("DeleteGroups", fail), {"groups_names": NAMES})
    assert seen[0].groups_names == NAMES


async def test_groups_are_listed_in_turns(node: Node) -> None:
    service: Any = SimpleNamespace(
        list_groups=lambda: (ErrorCode.NONE, [(name, "consumer", "Empty", "classic") for name in NAMES])
    )
    handler = group_handlers(service)[BY_NAME["ListGroups"].key]
    answer = await node.ask("ListGroups", handler, {"states_filter": [], "types_filter": []})
    assert [group.group_id for group in answer.groups] == MINE
    assert 0 < node.most <= COUNT / 2
    assert len(node.authorizer._decisions) == 1  # about the cluster


async def test_topics_of_a_page_are_checked_as_it_is_filled(node: Node, cluster: AdminCluster) -> None:
    for name in ("mine1", "mine3"):
        await cluster.create(name, (1,))
    await cluster.create("mind", (1,))
    handler = describe_topic_partitions_handler(cluster.dependencies)
    denied = ["mind", *(f"n{number}" for number in range(COUNT))]
    fields: dict[str, Any] = {
        "topics": [{"name": name} for name in ("mine1", "mine3", *denied)],
        "response_partition_limit": 1,
    }
    first = await node.ask("DescribeTopicPartitions", handler, fields)
    assert [topic.name for topic in first.topics] == ["mine1", "mind"]
    assert first.next_cursor.topic_name == "mine3"
    operations = len(OPERATIONS_OF[ResourceType.TOPIC])
    assert node.most <= 3 + operations
    fields["cursor"] = {"topic_name": "mine3", "partition_index": 0}
    second = await node.ask("DescribeTopicPartitions", handler, fields)
    assert [topic.name for topic in second.topics] == ["mine3", *sorted(denied[1:])]
    assert second.next_cursor is None
    assert [topic.error_code for topic in second.topics] == [0, *[TOPIC_DENIED] * COUNT]
    assert node.most <= COUNT / 2
    assert not node.authorizer._decisions


async def test_cursor_does_not_name_a_denied_topic(node: Node, cluster: AdminCluster) -> None:
    for name in ("mine1", "mine2", "secret"):
        await cluster.create(name, (1,))
    handler = describe_topic_partitions_handler(cluster.dependencies)
    page = await node.ask("DescribeTopicPartitions", handler, {"topics": [], "response_partition_limit": 2})
    assert [topic.name for topic in page.topics] == ["mine1", "mine2"]
    assert page.next_cursor is None
