"""Whom nodes read the committed log from to which no leader sends it."""

import asyncio

from pump import until
from structlog.testing import capture_logs

from tierlog.base.clock import SystemClock
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.quorum.log_pages import LogPage
from tierlog.metadata.quorum.log_reader import LogReader
from tierlog.metadata.quorum.observer import MetadataObserver
from tierlog.metadata.quorum.peers import NoPeers
from tierlog.metadata.raft.messages import Entry


class _Sources(NoPeers):
    def __init__(self) -> None:
        self.asked: list[int] = []

    async def log_page(self, voter: int, after: int, wait_ms: int) -> LogPage:
        """All of them know who leads, and who votes."""
        self.asked.append(voter)
        return LogPage((), 2, {2: "", 5: ""})


async def test_who_is_no_voter_any_more_is_not_asked_again():
    """Two nodes that were let go read from each other for ever, and heard nothing new."""
    sources = _Sources()
    reader = LogReader(sources, lambda: [3, 2], lambda: 7, lambda page, data: True)
    await reader.read(lambda: len(sources.asked) < 4)
    assert sources.asked == [3, 2, 2, 2]


class _MadeAnew(NoPeers):
    """Its second page is of another log than its first; what is asked for then never comes."""

    def __init__(self) -> None:
        self.pages = [LogPage((), 2, {2: ""}), LogPage((Entry(5, 1, b""),), 2, {2: ""}, after_term=3)]

    async def log_page(self, voter: int, after: int, wait_ms: int) -> LogPage:
        if not self.pages:
            await asyncio.Event().wait()
        return self.pages.pop(0)


async def test_a_broker_that_is_no_voter_is_to_be_restarted() -> None:
    """It keeps no metadata that could be deleted."""
    tasks = TaskGroup(lambda name, failure: None)
    observer = MetadataObserver(9, {2: ""}, SystemClock(), tasks, "c", peers=_MadeAnew(), session_ms=3000)
    with capture_logs() as told:
        await observer.start()
        await until(lambda: bool(told))
    await observer.stop()
    await tasks.close()
    assert "Restart this broker" in told[0]["why"] and "Delete" not in told[0]["why"]
