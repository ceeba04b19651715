"""Whom a node reads the committed log from, and what it does not take in."""

import asyncio
import random
from collections.abc import Callable

import pytest
from crc32c import crc32c
from pump import until
from structlog.testing import capture_logs

from tierlog.base.tasks import TaskGroup
from tierlog.metadata.quorum.log_pages import LogPage
from tierlog.metadata.quorum.log_reader import CatchUpReader, LogReader
from tierlog.metadata.quorum.peers import MetadataUnavailable, NoPeers
from tierlog.metadata.quorum.recovery import TERM_GAP
from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.core import RaftCore
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.membership import Configuration, Member
from tierlog.metadata.raft.settings import RaftSettings

DATA = b"a snapshot of two"


class Sources(NoPeers):
    """Each has the same page, and the data of its snapshot."""

    def __init__(self, page: LogPage) -> None:
        self.page = page
        self.asked: list[int] = []
        self.chunks = 0

    async def log_page(self, voter: int, after: int, wait_ms: int) -> LogPage:
        self.asked.append(voter)
        return self.page

    async def snapshot_chunk(self, voter: int, index: int, offset: int) -> bytes:
        self.chunks += 1
        return DATA[offset : offset + 9]


def snapshot_page(**other: int) -> LogPage:
    named = {"snapshot_index": 7, "snapshot_bytes": len(DATA), "snapshot_crc32c": crc32c(DATA)}
    return LogPage((), m.NO_NODE, {}, **(named | other))


def reader_of(
    peers: Sources, taken: list[bytes], settings: RaftSettings | None = None, *, fits: bool = True
) -> LogReader:
    def take(_: LogPage, data: bytes) -> bool:
        taken.append(data)
        return fits

    return LogReader(peers, lambda: (2, 3), lambda: 0, take, settings)


async def test_a_snapshot_larger_than_a_leader_may_send_is_not_read_at_all() -> None:
    peers, taken = Sources(snapshot_page()), list[bytes]()
    await reader_of(peers, taken, RaftSettings(snapshot_bytes=len(DATA))).read()
    assert taken == [DATA, DATA]
    peers, taken = Sources(snapshot_page()), []
    reader = reader_of(peers, taken, RaftSettings(snapshot_bytes=len(DATA) - 1))
    with capture_logs() as told:
        await reader.read()
        await reader.read()
    assert (taken, peers.asked, peers.chunks) == ([], [2, 3, 2, 3], 0)
    assert [(line["node"], "more than 16" in line["why"]) for line in told] == [(2, True), (3, True)]


@pytest.mark.parametrize("lies", [{"snapshot_bytes": 4}, {"snapshot_bytes": 99}, {"snapshot_crc32c": 1}])
async def test_a_snapshot_that_is_not_as_it_was_told_is_not_taken(lies: dict[str, int]) -> None:
    peers, taken = Sources(snapshot_page(**lies)), list[bytes]()
    await reader_of(peers, taken).read()
    assert taken == []


async def test_a_log_that_is_another_is_told_of_once() -> None:
    peers, taken = Sources(LogPage((), 2, {})), list[bytes]()
    reader = reader_of(peers, taken, fits=False)
    with capture_logs() as told:
        await reader.read()
        await reader.read()
    assert peers.asked == [2, 3, 2, 3]
    assert [(line["node"], "Delete this node" in line["why"]) for line in told] == [(2, True), (3, True)]


async def test_what_cannot_be_taken_ends_the_reading() -> None:
    """As by a node that has failed; the page would be the same for ever."""
    peers = Sources(LogPage((m.Entry(1, 1, b"x"),), 2, {}))

    def take(page: LogPage, data: bytes) -> bool:
        raise MetadataUnavailable("the metadata node failed", applied_unknown=False)

    await LogReader(peers, lambda: (2, 3), lambda: 0, take).read()
    assert peers.asked == [2, 3]


def core_of(node_id: int, *terms: int, voters: tuple[int, ...] = (1, 2, 3)) -> RaftCore:
    entries = [m.Entry(term, index + 1, b"x") for index, term in enumerate(terms)]
    state = m.HardState(terms[-1] if terms else 0, m.NO_NODE, len(terms))
    configuration = Configuration({voter: Member() for voter in voters})
    return RaftCore(
        node_id, configuration, RaftLog(m.Snapshot(), entries, len(terms)), state, random.Random(1)
    )


async def followed(core: RaftCore, peers: Sources, take: Callable[[LogPage, bytes], bool]) -> None:
    """One round of all sources."""
    tasks = TaskGroup(lambda name, failure: None)
    following = CatchUpReader(core, peers, tasks, take, addresses=(1, 5))
    while not peers.asked:
        following.tick()
        await asyncio.sleep(0)
    await until(lambda: len(tasks) == 0)
    await following.stop()
    await tasks.close()


async def test_nodes_that_only_the_settings_name_are_asked_after_the_voters() -> None:
    peers = Sources(LogPage((), m.NO_NODE, {}))
    await followed(core_of(4, 1), peers, lambda page, data: True)
    assert peers.asked == [1, 2, 3, 5]


@pytest.mark.parametrize(
    ("terms", "voters", "takes"),
    [((1,), (1, 2, 4), False), ((9,), (1, 2, 4), False), ((), (1, 2, 4), True), ((1,), (1, 2, 3), True)],
    ids=["a voter", "one of a later term", "one with an empty disk", "who was let go"],
)
async def test_only_a_voter_with_a_log_does_not_go_over_to_a_recovered_quorum(
    terms: tuple[int, ...], voters: tuple[int, ...], takes: bool
) -> None:
    """It may hold what that one has lost."""
    taken: list[LogPage] = []
    peers = Sources(LogPage((), m.NO_NODE, {}, term=TERM_GAP + 2))
    await followed(core_of(4, *terms, voters=voters), peers, lambda page, data: not taken.append(page))
    assert bool(taken) is takes
