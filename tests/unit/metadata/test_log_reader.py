"""Whom nodes read the committed log from to which no leader sends it."""

from tierlog.metadata.following import LogReader
from tierlog.metadata.pages import LogPage
from tierlog.metadata.peers import NoPeers


class _Sources(NoPeers):
    def __init__(self) -> None:
        self.asked: list[int] = []

    async def log(self, voter: int, after: int, wait_ms: int) -> LogPage:
        """All of them know who leads, and who votes."""
        self.asked.append(voter)
        return LogPage((), 2, {2: "", 5: ""})


async def test_who_is_no_voter_any_more_is_not_asked_again():
    """Two nodes that were let go read from each other for ever, and heard nothing new."""
    sources = _Sources()
    reader = LogReader(sources, lambda: [3, 2], lambda: 7, lambda page, data: True)
    await reader.read(lambda: len(sources.asked) < 4)
    assert sources.asked == [3, 2, 2, 2]
