"""Fetch from the nearest replica (KIP-392): redirection by the leader, and reads at a follower."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from connection_harness import until
from fetch_node import EPOCH, FOLLOWED, LED, NEWEST, TOPIC, Node, fetch_node
from immutables import Map

from tierlog.broker.handlers.nearest_replica import nearest_replica
from tierlog.config.node import RACK_AWARE_SELECTOR
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.api import FETCH_KEY
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import fetch
from tierlog.records.writer import NewRecord, encode_batch


@pytest.fixture
async def node(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    """Brokers 1 to 4 are in the racks a, b, b and c, and 4 is not in sync."""
    selector = getattr(request, "param", RACK_AWARE_SELECTOR)
    async with fetch_node(tmp_path, **{"replica.selector.class": selector}) as made:
        yield made


# ---- the leader -----------------------------------------------------------------------------------


async def test_consumer_is_redirected_to_the_most_advanced_replica_in_its_rack(node: Node) -> None:
    node.lead(10)
    for follower, offset in ((2, 6), (3, 9), (4, 10)):
        node.hear(follower, offset)
    reported = await node.read(LED, 5, rack_id="b")
    assert (reported.error_code, reported.preferred_read_replica, bytes(reported.records)) == (0, 3, b"")


@pytest.mark.parametrize(
    ("rack", "offset", "why"),
    [
        ("a", 5, "it is the leader's own"),
        ("c", 5, "its replica is not in sync"),
        ("d", 5, "no broker is in it"),
        ("", 5, "the consumer does not say where it is"),
        ("b", 10, "no follower there has that offset yet"),
        ("b", 1, "the followers there no longer have it"),
    ],
)
async def test_leader_answers_without_a_replica_in_the_rack(
    node: Node, rack: str, offset: int, why: str
) -> None:
    node.lead(12)
    for follower in (2, 3, 4):
        node.hear(follower, 9, log_start_offset=3)
    reported = await node.read(LED, offset, rack_id=rack)
    assert (reported.error_code, reported.preferred_read_replica) == (0, -1), why


async def test_replica_that_left_the_in_sync_set_is_not_named(node: Node) -> None:
    node.lead(10)
    node.hear(2, 10)
    node.hear(3, 9)
    assert (await node.read(LED, 5, rack_id="b")).preferred_read_replica == 2
    node.replica(LED).become_leader(EPOCH, 1, (1, 3), (1, 2, 3, 4), 0)
    assert (await node.read(LED, 5, rack_id="b")).preferred_read_replica == 3


@pytest.mark.parametrize("node", [""], indirect=True)
async def test_without_a_selector_the_leader_answers(node: Node) -> None:
    node.lead(10)
    for follower in (2, 3, 4):
        node.hear(follower, 10)
    assert (await node.read(LED, 5, rack_id="b")).preferred_read_replica == -1


async def test_redirected_consumer_is_answered_at_once_even_in_a_session(node: Node) -> None:
    node.lead(10)
    for follower, offset in ((2, 10), (3, 9)):
        node.hear(follower, offset)
    topic = fetch.FetchTopic(
        topic_id=TOPIC, partitions=[fetch.FetchPartition(partition=LED, partition_max_bytes=1_000_000)]
    )
    requested = fetch.FetchRequest(
        session_epoch=0, min_bytes=1, max_wait_ms=600_000, topics=[topic], rack_id="b"
    )
    first = await node.client.ask(FETCH_KEY, NEWEST, requested)
    again = fetch.FetchRequest(
        session_id=first.session_id, session_epoch=1, min_bytes=1, max_wait_ms=600_000, rack_id="b"
    )
    second = await node.client.ask(FETCH_KEY, NEWEST, again)
    assert [one.responses[0].partitions[0].preferred_read_replica for one in (first, second)] == [2, 2]


@pytest.mark.parametrize(
    ("broker_racks", "client_rack", "expected"),
    [
        ({1: "a/h1", 2: "b/h2", 3: "c/h3"}, "b", 2),
        ({1: "a/h1", 2: "b/h2", 3: "c/h3"}, "c/h9", 3),
        ({1: "a/h1", 2: "b", 3: "c"}, "b/h2", 2),
        ({1: "a/h1", 2: "a/h2", 3: "c/h3"}, "a/h2", -1),  # the leader is in its zone
        ({1: "a/h1", 2: "ab/h2", 3: "c/h3"}, "ab", 2),
        ({1: "/r1", 2: "/r2", 3: None}, "/r2", 2),
        ({1: "/r1", 2: "/r2", 3: None}, "/r3", -1),  # no zone is not one that they share
    ],
)
async def test_only_the_zone_of_a_rack_counts(
    node: Node, broker_racks: dict[int, str | None], client_rack: str, expected: int
) -> None:
    node.lead(10)
    for follower in (2, 3):
        node.hear(follower, 10)
    image = ClusterImage(
        cluster_id="c",
        brokers=Map(
            {
                one: msgspec.structs.replace(node.image.brokers[one], rack=rack)
                for one, rack in broker_racks.items()
            }
        ),
    )
    assert nearest_replica(image, 1, node.replica(LED), client_rack, 5) == expected


# ---- the follower ---------------------------------------------------------------------------------


async def test_follower_serves_committed_records(node: Node) -> None:
    node.follow(records=5, committed=3)
    one = encode_batch([NewRecord(0, None, b"v")])
    reported = await node.read(FOLLOWED, 0, version=11)
    assert (reported.error_code, reported.high_watermark, len(reported.records)) == (0, 3, 3 * len(one))
    beyond = await node.read(FOLLOWED, 4)
    assert (beyond.error_code, bytes(beyond.records)) == (0, b"")  # in range, and not committed yet


async def test_offset_that_a_follower_lacks_is_out_of_range(node: Node) -> None:
    node.follow(records=5, committed=5)
    assert (await node.read(FOLLOWED, 6)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_old_consumer_at_a_follower_gets_not_leader(node: Node) -> None:
    node.follow(records=1, committed=1)
    assert (await node.read(FOLLOWED, 0, version=10)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    reported = await node.read(LED, 0, version=10)
    assert reported.error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH), (EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
async def test_follower_with_another_epoch_than_the_consumer_returns_an_error(
    node: Node, epoch: int, error: ErrorCode
) -> None:
    node.follow(records=1, committed=1)
    assert (await node.read(FOLLOWED, 0, epoch=epoch)).error_code == error


async def test_consumer_waits_at_a_follower_for_the_high_watermark(node: Node) -> None:
    node.follow(records=2, committed=1)
    requested = fetch.FetchPartition(partition=FOLLOWED, fetch_offset=1, partition_max_bytes=1_000_000)
    topic = fetch.FetchTopic(topic_id=TOPIC, partitions=[requested])
    request = fetch.FetchRequest(max_wait_ms=600_000, min_bytes=1, topics=[topic])
    node.client.send(FETCH_KEY, NEWEST, request)
    await until(lambda: len(node.purgatory) == 1)
    node.follow(records=0, committed=2)
    _, answer = await node.client.receive(FETCH_KEY, NEWEST)
    reported = answer.responses[0].partitions[0]
    assert (reported.high_watermark, len(reported.records) > 0) == (2, True)
