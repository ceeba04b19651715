"""Log readers: which nodes they read the committed log from, and what they reject."""

import asyncio
import random
from collections.abc import Callable

import pytest
from connection_harness import until
from crc32c import crc32c
from structlog.testing import capture_logs

from tierlog.base.tasks import TaskGroup
from tierlog.metadata.quorum.log_pages import LogPage
from tierlog.metadata.quorum.log_reader import CatchUpReader, LogReader
from tierlog.metadata.quorum.peers import MetadataUnavailable, Peers
from tierlog.metadata.quorum.recovery import TERM_GAP
from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.core import RaftCore
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.membership import Configuration, Member
from tierlog.metadata.raft.settings import RaftSettings

DATA = b"a snapshot of two"


class Sources(Peers):
    """All serve the same page, and the data of its snapshot."""

    def __init__(self, page: LogPage) -> None:
        self.page = page
        self.read_from: list[int] = []
        self.chunks = 0

    async def log_page(self, voter: int, after: int, wait_ms: int) -> LogPage:
        self.read_from.append(voter)
        return self.page

    async def snapshot_chunk(self, voter: int, index: int, offset: int) -> bytes:
        self.chunks += 1
        return DATA[offset : offset + 9]


def snapshot_page(**other: int) -> LogPage:
    named = {"snapshot_index": 7, "snapshot_bytes": len(DATA), "snapshot_crc32c": crc32c(DATA)}
    return LogPage((), m.NO_NODE, {}, **(named | other))


def reader_of(
    peers: Sources, accepted: list[bytes], settings: RaftSettings | None = None, *, continues: bool = True
) -> LogReader:
    def accept(_: LogPage, data: bytes) -> bool:
        accepted.append(data)
        return continues

    return LogReader(peers, lambda: (2, 3), lambda: 0, accept, settings)


async def test_snapshot_above_the_limit_is_not_read() -> None:
    peers, accepted = Sources(snapshot_page()), list[bytes]()
    await reader_of(peers, accepted, RaftSettings(max_snapshot_bytes=len(DATA))).read()
    assert accepted == [DATA, DATA]
    peers, accepted = Sources(snapshot_page()), []
    reader = reader_of(peers, accepted, RaftSettings(max_snapshot_bytes=len(DATA) - 1))
    with capture_logs() as logs:
        await reader.read()
        await reader.read()
    assert (accepted, peers.read_from, peers.chunks) == ([], [2, 3, 2, 3], 0)
    assert [(line["node"], "more than 16" in line["why"]) for line in logs] == [(2, True), (3, True)]


@pytest.mark.parametrize("wrong", [{"snapshot_bytes": 4}, {"snapshot_bytes": 99}, {"snapshot_crc32c": 1}])
async def test_snapshot_that_differs_from_its_page_is_rejected(wrong: dict[str, int]) -> None:
    peers, accepted = Sources(snapshot_page(**wrong)), list[bytes]()
    await reader_of(peers, accepted).read()
    assert accepted == []


async def test_diverging_log_is_reported_once_per_source() -> None:
    peers, accepted = Sources(LogPage((), 2, {})), list[bytes]()
    reader = reader_of(peers, accepted, continues=False)
    with capture_logs() as logs:
        await reader.read()
        await reader.read()
    assert peers.read_from == [2, 3, 2, 3]
    assert [(line["node"], "Delete this node" in line["why"]) for line in logs] == [(2, True), (3, True)]


async def test_reading_ends_if_the_node_cannot_accept_a_page() -> None:
    """As in a node that has failed: it would get the same page forever."""
    peers = Sources(LogPage((m.Entry(1, 1, b"x"),), 2, {}))

    def accept(page: LogPage, data: bytes) -> bool:
        raise MetadataUnavailable("the metadata node failed", applied_unknown=False)

    await LogReader(peers, lambda: (2, 3), lambda: 0, accept).read()
    assert peers.read_from == [2, 3]


async def test_source_that_is_not_a_voter_is_not_read_again() -> None:
    """Two removed nodes used to read from each other forever, and got nothing new."""
    peers = Sources(LogPage((), 2, {2: "", 5: ""}))
    reader = LogReader(peers, lambda: [3, 2], lambda: 7, lambda page, data: True)
    await reader.read(lambda: len(peers.read_from) < 4)
    assert peers.read_from == [3, 2, 2, 2]


def core_of(node_id: int, *terms: int, voters: tuple[int, ...] = (1, 2, 3)) -> RaftCore:
    entries = [m.Entry(term, index + 1, b"x") for index, term in enumerate(terms)]
    state = m.HardState(terms[-1] if terms else 0, m.NO_NODE, len(terms))
    configuration = Configuration({voter: Member() for voter in voters})
    return RaftCore(
        node_id, configuration, RaftLog(m.Snapshot(), entries, len(terms)), state, random.Random(1)
    )


async def read_once(core: RaftCore, peers: Sources, accept: Callable[[LogPage, bytes], bool]) -> None:
    """Read from all sources once."""
    tasks = TaskGroup(lambda name, failure: None)
    reader = CatchUpReader(core, peers, tasks, accept, addresses=(1, 5))
    while not peers.read_from:
        reader.tick()
        await asyncio.sleep(0)
    await until(lambda: len(tasks) == 0)
    await reader.stop()
    await tasks.close()


async def test_nodes_in_the_settings_are_read_after_the_voters() -> None:
    peers = Sources(LogPage((), m.NO_NODE, {}))
    await read_once(core_of(4, 1), peers, lambda page, data: True)
    assert peers.read_from == [1, 2, 3, 5]


@pytest.mark.parametrize(
    ("terms", "voters", "accepts"),
    [((1,), (1, 2, 4), False), ((9,), (1, 2, 4), False), ((), (1, 2, 4), True), ((1,), (1, 2, 3), True)],
    ids=["a voter", "one of a later term", "one with an empty disk", "a removed voter"],
)
async def test_only_a_voter_with_a_log_rejects_the_log_of_a_recovered_quorum(
    terms: tuple[int, ...], voters: tuple[int, ...], accepts: bool
) -> None:
    """It may hold entries that the recovery lost."""
    accepted: list[LogPage] = []
    peers = Sources(LogPage((), m.NO_NODE, {}, term=TERM_GAP + 2))
    await read_once(core_of(4, *terms, voters=voters), peers, lambda page, data: not accepted.append(page))
    assert bool(accepted) is accepts
