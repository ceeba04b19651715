"""Leadership: evaluates commands on a draft image, and completes their callers once the outcome is known.

The draft exists only while this node is the leader. It is always the image after the last entry of the log,
committed or not. A reply is returned once the state that it is based on is committed. A command that changes
nothing needs no entry: the quorum confirms that this node is still the leader (ReadIndex, thesis 6.4).

Owned by the metadata node, and called on its event loop.
"""

import asyncio
from collections.abc import Callable, Container
from typing import TypeVar, cast

from tierlog.base.clock import Clock
from tierlog.base.safeguards import safeguard
from tierlog.base.types import Rng
from tierlog.metadata import records as r
from tierlog.metadata.controller.commands import AnyCommand, Command, Reply
from tierlog.metadata.controller.decide import decide
from tierlog.metadata.controller.decision import Decision
from tierlog.metadata.controller.remote import waiting_since_ms
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.peers import LeadershipLost, MetadataUnavailable
from tierlog.metadata.quorum.publisher import MetadataPublisher
from tierlog.metadata.raft.core import NotLeader, RaftCore
from tierlog.metadata.raft.membership import Configuration
from tierlog.metadata.raft.messages import Entry, Snapshot
from tierlog.metadata.records import encode_records

MAX_ENTRY_BYTES = 8 << 20  # leaves ample space in one HTTP request
MAX_WAITING = 10_000  # entries, and reads, whose outcome is awaited
Waiter = tuple[int, asyncio.Future[None]]  # the term in which it began to wait
R = TypeVar("R", bound=Reply)


class Leadership:
    def __init__(
        self, core: RaftCore, publisher: MetadataPublisher, clock: Clock, rng: Rng, wake: Callable[[], None]
    ) -> None:
        """`wake`: called when the core has work."""
        self._core, self._publisher, self._clock, self._rng, self._wake = core, publisher, clock, rng, wake
        self.draft: ClusterImage | None = None
        self.term = -1  # term of the draft
        self._quorum_time_offset_ms = 0  # the quorum's time minus the monotonic clock
        self._waiting: dict[int, list[Waiter]] = {}  # by index of the entry
        self._reads: dict[int, Waiter] = {}  # by number of the read

    def follow_core(self) -> None:
        """Create or drop the draft as the core gains or loses leadership."""
        core = self._core
        if not (core.is_leader and self._publisher.term == core.term):
            self.draft = None
        elif self.draft is None or self.term != core.term:
            self.draft, self.term = self._publisher.image, core.term
            self._quorum_time_offset_ms = self._last_quorum_time_ms(self.draft) - self._clock.monotonic_ms()
        if not core.is_leader and core.node_id not in core.configuration.members:
            self._fail_after_own_removal()
        for number in [n for n, (term, _) in self._reads.items() if term != core.term or not core.is_leader]:
            _, read = self._reads.pop(number)
            if not read.done():
                read.set_exception(LeadershipLost())

    async def commit(self, command: Command[R], in_session: Container[int] = ()) -> R:
        """`in_session`: as in `decide`. Raises MetadataUnavailable; LeadershipLost if the command certainly
        had no effect."""
        draft = self._draft()
        if len(self._waiting) >= MAX_WAITING:
            raise _too_many_waiting(f"{MAX_WAITING} commands")
        now_ms = _quorum_time_ms(self._clock, self._quorum_time_offset_ms)
        any_command = cast(AnyCommand, command)
        decision = cast(Decision[R], decide(draft, any_command, now_ms, self._rng, in_session))
        if not decision.records:
            await self.confirm()
            return decision.reply
        payload = encode_records(decision.records)
        if len(payload) > MAX_ENTRY_BYTES:
            raise MetadataUnavailable(
                f"the command's records exceed {MAX_ENTRY_BYTES} bytes", applied_unknown=False
            )
        try:
            index = self._core.propose(payload)
        except NotLeader:
            raise LeadershipLost from None  # a leadership transfer is in progress
        self._proposed(draft, index, decision.records)
        await self._applied(index)
        return decision.reply

    @safeguard("a read is confirmed by a majority (ReadIndex)")
    async def confirm(self) -> None:
        """Return once the whole draft is applied, and this node was leader at some time after the call."""
        draft = self._draft()
        if len(self._reads) >= MAX_WAITING:
            raise _too_many_waiting(f"{MAX_WAITING} reads")
        awaited = []
        if self._core.voters != {self._core.node_id}:
            awaited.append(self._confirmed())
        if draft.index > self._publisher.image.index:
            awaited.append(self._applied(draft.index))
        if awaited:
            await asyncio.gather(*awaited)

    def configure(self, configuration: Configuration) -> asyncio.Future[None]:
        """Propose a configuration; the future is done once it is committed. Raises MetadataUnavailable,
        ChangeRefused."""
        draft = self.draft
        if draft is None:
            raise MetadataUnavailable("this node is not the leader of the quorum", applied_unknown=False)
        try:
            index = self._core.propose_configuration(configuration)
        except NotLeader:
            raise LeadershipLost from None  # a leadership transfer is in progress
        self._proposed(draft, index, ())
        return self._applied(index)

    def hand_over(self) -> bool:
        """Transfer leadership to another voter (`RaftCore.hand_over`). Returns False if none responds."""
        started = self._core.hand_over()
        if self._core.has_ready():
            self._wake()
        return started

    # --- events from the node's loop

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
            self._fail_superseded(entries[-1].term)

    def installed(self, snapshot: Snapshot) -> None:
        """The leader's snapshot skips entries, so the outcome of those awaited is unknown."""
        for index in [index for index in self._waiting if index <= snapshot.index]:
            _fail(self._waiting.pop(index), _outcome_unknown())
        self._fail_superseded(snapshot.term)

    def confirmed(self, number: int) -> None:
        """This node was leader after every read up to this number was requested."""
        for requested in [requested for requested in self._reads if requested <= number]:
            term, read = self._reads.pop(requested)
            if read.done():
                continue
            if term == self._core.term and self._core.is_leader:
                read.set_result(None)
            else:
                read.set_exception(LeadershipLost())

    def fail_outcome_unknown(self) -> None:
        """Another node is the leader, and this one cannot read the outcome of awaited entries for a while."""
        self._fail_waiting(_outcome_unknown())

    def fail(self, reason: MetadataUnavailable) -> None:
        """The node has failed or stopped."""
        self.draft = None
        self._fail_waiting(reason)
        reads, self._reads = self._reads, {}
        _fail(list(reads.values()), reason)

    # --- waiting

    def _fail_waiting(self, reason: MetadataUnavailable) -> None:
        waiting, self._waiting = self._waiting, {}
        for waiters in waiting.values():
            _fail(waiters, reason)

    def _fail_superseded(self, committed_term: int) -> None:
        """Terms never decrease along a log, so no uncommitted entry of an older term can still be committed.

        In an idle cluster the log may end before the awaited index, so waiting for it would take much longer.
        """
        for index in [i for i, waiters in self._waiting.items() if waiters[0][0] < committed_term]:
            waiters = self._waiting.pop(index)
            _fail([waiter for waiter in waiters if waiter[0] < committed_term], LeadershipLost())
            if current := [waiter for waiter in waiters if waiter[0] >= committed_term]:
                self._waiting[index] = current

    def _fail_after_own_removal(self) -> None:
        """A leader sends nothing to a node outside its configuration. A node that lost its leadership while
        it removed itself therefore learns the outcome of uncommitted entries only much later."""
        for index in [index for index in self._waiting if index > self._core.log.commit]:
            _fail(self._waiting.pop(index), _outcome_unknown())

    def _last_quorum_time_ms(self, image: ClusterImage) -> int:
        """The quorum's time when this controller takes over.

        While the delete queue is empty no grace period is running, so the wall clock will do. Otherwise it is
        the time of the last record that has one. If no record has one (only an unfinished page is queued, or
        an older tierlog wrote the log), it is the time at which the newest line was queued.
        """
        queued = (waiting_since_ms(line) for line in image.delete_queue.values())
        return image.time_ms or max(queued, default=self._clock.now_ms())

    def _draft(self) -> ClusterImage:
        if self.draft is None:
            raise LeadershipLost()
        return self.draft

    def _proposed(self, draft: ClusterImage, index: int, records: tuple[r.AnyRecord, ...]) -> None:
        self.draft = apply_entry(draft, index, records)
        self._wake()

    @safeguard("the controller responds after the commit")
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


@safeguard("the deletion grace period uses quorum time")
def _quorum_time_ms(clock: Clock, offset_ms: int) -> int:
    return clock.monotonic_ms() + offset_ms


def _too_many_waiting(what: str) -> MetadataUnavailable:
    message = (
        f"{what} wait for a majority of the metadata quorum: voters are down or slow to sync; "
        "`tierlog quorum status` shows which. Retry later"
    )
    return MetadataUnavailable(message, applied_unknown=False)


def _outcome_unknown() -> MetadataUnavailable:
    return MetadataUnavailable("another leader took over", applied_unknown=True)


def _fail(waiters: list[Waiter], reason: MetadataUnavailable) -> None:
    for _, waiting in waiters:
        if not waiting.done():
            waiting.set_exception(reason)
