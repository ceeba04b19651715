"""The leader's side of a node: commands judged on a draft image, and who waits for what became of them.

The draft exists only while this node leads and is dropped the moment it does not; it is always the image
after the last entry of the log. A reply leaves when what it was judged by is committed. One that changes
nothing needs no entry: the quorum confirms that this node still leads (ReadIndex, thesis 6.4).
"""

import asyncio
from collections.abc import Callable, Container

from tierlog.base.clock import Clock
from tierlog.base.types import Rng
from tierlog.metadata import records as r
from tierlog.metadata.controller.commands import AnyCommand, AnyReply
from tierlog.metadata.controller.decide import decide
from tierlog.metadata.controller.remote import waiting_since_ms
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.peers import LeadershipLost, MetadataUnavailable
from tierlog.metadata.quorum.publisher import MetadataPublisher
from tierlog.metadata.raft.core import NotLeader, RaftCore
from tierlog.metadata.raft.membership import Configuration
from tierlog.metadata.raft.messages import Entry, Snapshot
from tierlog.metadata.records import encode_records

MAX_ENTRY_BYTES = 8 << 20  # must fit into one HTTP request with room to spare
MAX_WAITING = 10_000  # entries, and questions, whose outcome is awaited
Waiter = tuple[int, asyncio.Future[None]]  # the term in which it began to wait


class Leadership:
    def __init__(
        self, core: RaftCore, publisher: MetadataPublisher, clock: Clock, rng: Rng, wake: Callable[[], None]
    ) -> None:
        """`wake`: the core has work."""
        self._core, self._publisher, self._clock, self._rng, self._wake = core, publisher, clock, rng, wake
        self.draft: ClusterImage | None = None
        self.term = -1  # of the draft
        self._time_origin_ms = 0  # the quorum's time less that of the monotonic clock
        self._waiting: dict[int, list[Waiter]] = {}  # by index of the entry
        self._reads: dict[int, Waiter] = {}  # by number of the question

    def follow_core(self) -> None:
        """Takes up or drops the draft, as the core leads or not."""
        core = self._core
        if not (core.is_leader and self._publisher.term == core.term):
            self.draft = None
        elif self.draft is None or self.term != core.term:
            self.draft, self.term = self._publisher.image, core.term
            self._time_origin_ms = self._time_so_far(self.draft) - self._clock.monotonic_ms()
        if not core.is_leader and core.node_id not in core.configuration.members:
            self._left_out()
        for number in [n for n, (term, _) in self._reads.items() if term != core.term or not core.is_leader]:
            _, read = self._reads.pop(number)
            if not read.done():
                read.set_exception(LeadershipLost())

    async def commit(self, command: AnyCommand, in_session: Container[int] = ()) -> AnyReply:
        """`in_session`: as `decide`'s. Raises MetadataUnavailable; LeadershipLost if it certainly had no
        effect."""
        draft = self._draft()
        if len(self._waiting) >= MAX_WAITING:
            raise _crowded(f"{MAX_WAITING} commands")
        now_ms = self._time_origin_ms + self._clock.monotonic_ms()
        decision = decide(draft, command, now_ms, self._rng, in_session)
        if not decision.records:
            await self.confirm()
            return decision.reply
        payload = encode_records(decision.records)
        if len(payload) > MAX_ENTRY_BYTES:
            raise MetadataUnavailable("the command makes too large an entry", applied_unknown=False)
        try:
            index = self._core.propose(payload)
        except NotLeader:
            raise LeadershipLost from None  # it is being handed over
        self._proposed(draft, index, decision.records)
        await self._applied(index)
        return decision.reply

    async def confirm(self) -> None:
        """Returns when everything in the draft is applied and this node was leader after the call began."""
        draft = self._draft()
        if len(self._reads) >= MAX_WAITING:
            raise _crowded(f"{MAX_WAITING} questions")
        awaited = []
        if self._core.voters != {self._core.node_id}:
            awaited.append(self._confirmed())
        if draft.index > self._publisher.image.index:
            awaited.append(self._applied(draft.index))
        if awaited:
            await asyncio.gather(*awaited)

    def configure(self, configuration: Configuration) -> asyncio.Future[None]:
        """Proposes it; done when it is committed. Raises MetadataUnavailable, ChangeRefused."""
        draft = self.draft
        if draft is None:
            raise MetadataUnavailable("this node does not lead", applied_unknown=False)
        try:
            index = self._core.propose_configuration(configuration)
        except NotLeader:
            raise LeadershipLost from None  # it is being handed over
        self._proposed(draft, index, ())
        return self._applied(index)

    def hand_over(self) -> bool:
        """As the core's."""
        asked = self._core.hand_over()
        if self._core.has_ready():
            self._wake()
        return asked

    # --- what the node's loop tells it

    def applied(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            for term, applied in self._waiting.pop(entry.index, ()):
                if applied.done():
                    continue
                if term == entry.term:
                    applied.set_result(None)
                else:
                    applied.set_exception(LeadershipLost())
        if entries:
            self._outdated(entries[-1].term)

    def installed(self, snapshot: Snapshot) -> None:
        """The leader's snapshot jumps over entries; what waited for one of them cannot know its fate."""
        for index in [index for index in self._waiting if index <= snapshot.index]:
            _fail(self._waiting.pop(index), _taken_over())
        self._outdated(snapshot.term)

    def confirmed(self, number: int) -> None:
        """The core led after every question up to this number was asked."""
        for asked in [asked for asked in self._reads if asked <= number]:
            term, read = self._reads.pop(asked)
            if read.done():
                continue
            if term == self._core.term and self._core.is_leader:
                read.set_result(None)
            else:
                read.set_exception(LeadershipLost())

    def taken_over(self) -> None:
        """Another leads, and what became of the entries that wait cannot be read here for a while."""
        self._fail_waiting(_taken_over())

    def fail(self, reason: MetadataUnavailable) -> None:
        """For good."""
        self.draft = None
        self._fail_waiting(reason)
        reads, self._reads = self._reads, {}
        _fail(list(reads.values()), reason)

    # --- waiting

    def _fail_waiting(self, reason: MetadataUnavailable) -> None:
        waiting, self._waiting = self._waiting, {}
        for waiters in waiting.values():
            _fail(waiters, reason)

    def _outdated(self, committed_term: int) -> None:
        """Terms never fall along a log: behind a committed entry of this term none of an older one follows.
        A log that ends before what is waited for, of an idle cluster, would tell it only much later."""
        for index in [i for i, waiters in self._waiting.items() if waiters[0][0] < committed_term]:
            waiters = self._waiting.pop(index)
            _fail([waiter for waiter in waiters if waiter[0] < committed_term], LeadershipLost())
            if current := [waiter for waiter in waiters if waiter[0] >= committed_term]:
                self._waiting[index] = current

    def _left_out(self) -> None:
        """A leader sends nothing to who is no member of its configuration: a node that lost its leadership
        while it removed itself reads only later what became of entries that are not committed here yet."""
        for index in [index for index in self._waiting if index > self._core.log.commit]:
            _fail(self._waiting.pop(index), _taken_over())

    def _time_so_far(self, image: ClusterImage) -> int:
        """The quorum's time when this controller takes over: its wall clock while nothing is queued, as no
        grace is under way. If no record says the time, because an unfinished page alone is queued or the log
        is of a tierlog that knew no such time, it is the time at which the newest line was queued."""
        queued = (waiting_since_ms(line) for line in image.delete_queue.values())
        return image.time_ms or max(queued, default=self._clock.now_ms())

    def _draft(self) -> ClusterImage:
        if self.draft is None:
            raise LeadershipLost()
        return self.draft

    def _proposed(self, draft: ClusterImage, index: int, records: tuple[r.AnyRecord, ...]) -> None:
        self.draft = apply_entry(draft, index, records)
        self._wake()

    def _applied(self, index: int) -> asyncio.Future[None]:
        applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(index, []).append((self._core.term, applied))
        return applied

    def _confirmed(self) -> asyncio.Future[None]:
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._reads[self._core.request_read()] = (self._core.term, confirmed)
        except NotLeader:
            confirmed.set_exception(LeadershipLost())
        self._wake()
        return confirmed


def _crowded(who: str) -> MetadataUnavailable:
    message = (
        f"{who} wait for a majority of the metadata quorum: its voters are away or slow to sync; "
        "`tierlog quorum status` shows which. Ask again later"
    )
    return MetadataUnavailable(message, applied_unknown=False)


def _taken_over() -> MetadataUnavailable:
    return MetadataUnavailable("another leader took over", applied_unknown=True)


def _fail(waiters: list[Waiter], reason: MetadataUnavailable) -> None:
    for _, waiting in waiters:
        if not waiting.done():
            waiting.set_exception(reason)
