"""The guard and handlers whose reply is not ready, is encoded already, or fails."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from wire_client import message

from tierlog.broker.handlers.context import CLOSE, Connection, Handler, Pending, RawReply, RequestContext
from tierlog.broker.handlers.guard import guarded_handlers
from tierlog.broker.handlers.turns import ENTRIES_PER_TURN, respond_in_turns
from tierlog.broker.security.authorizer import Authorizer
from tierlog.metadata.acl_index import index_of
from tierlog.metadata.acls import (
    AccessControlEntry,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.codec import ELEMENTS_MAX, decode, encode
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from tierlog.protocol.primitives import MalformedFrame

VERSION = 9
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Guarded:
    """A handler of Produce behind a guard that permits the topic `mine`."""

    def __init__(self, handler: Handler) -> None:
        entry = AccessControlEntry(
            resource=ResourceType.TOPIC,
            pattern=PatternType.LITERAL,
            name="mine",
            principal="User:ANONYMOUS",
            host="*",
            operation=AclOperation.WRITE,
            permission=Permission.ALLOW,
        )
        metadata: Any = SimpleNamespace(image=ClusterImage(cluster_id="c", acls=index_of([entry])))
        self.errors: Counter[int] = Counter()
        stats = SimpleNamespace(for_api=lambda key: SimpleNamespace(errors=self.errors))
        deps: Any = SimpleNamespace(metadata=metadata, stats=stats, audit=None)
        key = BY_NAME["Produce"].key
        self._handle = guarded_handlers({key: handler}, deps, Authorizer(metadata))[key]
        self._context = RequestContext(key, VERSION, 1, "c", Connection(1, "h", 1))

    def __call__(self, request: Any) -> Any:
        return self._handle(self._context, request)


def request(*topics: str, acks: int = -1) -> Any:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": b""}]} for topic in topics]
    return message("Produce", {"acks": acks, "topic_data": data})


def answered(request: Any) -> ProduceResponse:
    return ProduceResponse(responses=[TopicProduceResponse(name=topic.name) for topic in request.topic_data])


def codes(response: Any) -> dict[str, list[int]]:
    return {
        topic.name: [partition.error_code for partition in topic.partition_responses]
        for topic in response.responses
    }


EXPECTED = {"mine": [], "other": [DENIED]}


@pytest.mark.parametrize("as_future", [True, False])
async def test_reply_that_is_awaited_gets_the_denied_items(as_future: bool) -> None:
    ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def work() -> Any:
        return await ready

    handler: Handler = lambda context, request: Pending(ready if as_future else work())  # noqa: E731
    pending = Guarded(handler)(request("other", "mine"))
    ready.set_result(answered(request("mine")))
    assert codes(await pending) == EXPECTED


async def test_cancelling_the_reply_cancels_the_work() -> None:
    ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pending = Guarded(lambda context, request: Pending(ready))(request("other", "mine"))
    pending.work.cancel()
    await asyncio.sleep(0)
    assert ready.cancelled()


async def test_failure_of_the_work_is_that_of_the_reply() -> None:
    ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pending = Guarded(lambda context, request: Pending(ready))(request("other", "mine"))
    ready.set_exception(RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        await pending


def test_encoded_reply_gets_the_denied_items() -> None:
    guarded = Guarded(lambda context, request: RawReply([encode(answered(request), VERSION)]))
    assert codes(guarded(request("other", "mine"))) == EXPECTED
    assert guarded.errors == {DENIED: 1}


def test_handler_is_not_called_if_everything_is_denied() -> None:
    guarded = Guarded(lambda context, request: pytest.fail("it was called"))
    assert codes(guarded(request("other"))) == {"other": [DENIED]}
    assert guarded(request("other", acks=0)) is CLOSE


def test_request_is_whole_again_if_the_handler_fails() -> None:
    def fail(context: RequestContext, request: Any) -> Any:
        assert [topic.name for topic in request.topic_data] == ["mine"]
        raise RuntimeError("broken")

    both = request("other", "mine")
    with pytest.raises(RuntimeError, match="broken"):
        Guarded(fail)(both)
    assert [topic.name for topic in both.topic_data] == ["other", "mine"]


@pytest.mark.parametrize("as_future", [True, False])
@pytest.mark.parametrize("raises", [True, False])
async def test_request_is_whole_again_if_the_work_fails(as_future: bool, raises: bool) -> None:
    ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def work() -> Any:
        return await ready

    both = request("other", "mine")
    pending = Guarded(lambda context, request: Pending(ready if as_future else work()))(both)
    if raises:
        ready.set_exception(RuntimeError("broken"))
    else:
        ready.set_result(RawReply([b""]))  # it cannot be decoded
    with pytest.raises(RuntimeError if raises else MalformedFrame):
        await pending
    assert [topic.name for topic in both.topic_data] == ["other", "mine"]


def test_large_encoded_reply_gets_the_denied_items() -> None:
    large = answered(request("mine"))
    large.responses[0].partition_responses = [PartitionProduceResponse(index=n) for n in range(ELEMENTS_MAX)]
    guarded = Guarded(lambda context, request: RawReply([encode(large, VERSION)]))
    answer = guarded(request("other", "mine"))
    assert [topic.name for topic in answer.responses] == ["mine", "other"]


async def test_reply_that_was_encoded_in_turns_gets_the_denied_items() -> None:
    names = [f"mine-{number}" for number in range(2 * ENTRIES_PER_TURN)]
    items = (TopicProduceResponse(name=name) for name in names)
    work = respond_in_turns(ProduceResponse(), VERSION, "responses", len(names), items)
    reply = await Guarded(lambda context, request: Pending(work))(request("other", "mine"))
    assert isinstance(reply, RawReply), "it was not decoded"
    answer = decode(ProduceResponse, VERSION, b"".join(bytes(part) for part in reply.parts))
    assert codes(answer) == {name: [] for name in names} | {"other": [DENIED]}
    assert reply.errors == {DENIED: 1}


def test_handler_knows_the_access_of_a_permitted_client() -> None:
    """A handler without it would allow everything."""

    def handle(context: RequestContext, request: Any) -> Any:
        assert context.access is not None
        write, kind = AclOperation.WRITE, ResourceType.TOPIC
        seen.extend(context.access.allows(write, kind, name) for name in ("mine", "other"))

    seen: list[bool] = []
    Guarded(handle)(request("mine"))
    assert seen == [True, False]


def test_permitted_request_is_passed_on_as_it_is() -> None:
    seen: list[Any] = []
    permitted = request("mine")
    Guarded(lambda context, request: seen.append(request))(permitted)
    assert seen == [permitted]
