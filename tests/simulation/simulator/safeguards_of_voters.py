"""More safeguards of the quorum: its log, its configurations, what its leader says, its leases."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from simulator.switches import Patches, safeguard
from tierlog.metadata.controller.commands import Heartbeat, HeartbeatReply
from tierlog.metadata.controller.sessions import BrokerSessions
from tierlog.metadata.fencing import Fencing
from tierlog.metadata.leadership import Leadership
from tierlog.metadata.membership import Membership
from tierlog.metadata.peers import LeadershipLost
from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.core import NotLeader, RaftCore
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.membership import ChangeRefused, Configuration, encode_configuration
from tierlog.metadata.raft.messages import CONFIGURATION, Entry
from tierlog.metadata.raft.replication import Replication

# --- the log


@safeguard("a heartbeat commits what is known to be there", "what never was committed counts", of_quorum=True)
def _() -> Patches:
    broadcast = Replication.broadcast_heartbeats

    def without(replication: Replication) -> None:
        send, commit = replication._send, replication._log.commit
        replication._send = lambda told: send(
            replace(told, commit=commit) if isinstance(told, m.Heartbeat) else told
        )
        try:
            broadcast(replication)
        finally:
            replication._send = send

    yield Replication, "broadcast_heartbeats", without


@safeguard("only what contradicts an append is cut", "one that comes late takes others back", of_quorum=True)
def _() -> Patches:
    merge = RaftLog.merge

    def without(log: RaftLog, entries: tuple[Entry, ...]) -> None:
        if entries and log.commit < (first := entries[0].index) <= log.last_index:
            del log._entries[first - log._before - 1 :]
            log.stable = min(log.stable, first - 1)
            log._configurations = [held for held in log._configurations if held[0] < first]
        merge(log, entries)

    yield RaftLog, "merge", without


@safeguard("a snapshot takes nothing that follows it", "what a majority had is lost", of_quorum=True)
def _() -> Patches:
    on_chunk = RaftCore._on_snapshot_chunk

    def without(core: RaftCore, chunk: m.SnapshotChunk) -> None:
        with patch.object(RaftLog, "matches", lambda *_: False):
            on_chunk(core, chunk)

    yield RaftCore, "_on_snapshot_chunk", without


# --- configurations


def _propose_unchecked(core: RaftCore, configuration: Configuration) -> int:
    if core.replication is None:
        raise NotLeader
    index = core._append(encode_configuration(configuration), CONFIGURATION)
    core._replicate()
    core._configure()
    core._replicate()
    core._advance_commit(core.replication)
    return index


@safeguard("one change of voters at a time", "majorities do not overlap", of_quorum=True)
def _() -> Patches:
    def without(core: RaftCore, configuration: Configuration) -> int:
        if not core.leads_for_sure:
            raise ChangeRefused("the leader has committed nothing of its term yet")
        return _propose_unchecked(core, configuration)

    def unlocked(change: Callable[..., Awaitable[None]]) -> object:
        async def at_once(membership: Membership, *asked: Any) -> None:
            membership._changing = asyncio.Lock()
            await change(membership, *asked)

        return at_once

    async def settled(_: Membership) -> None:
        return

    yield RaftCore, "propose_configuration", without
    yield Membership, "add_voter", unlocked(Membership.add_voter)
    yield Membership, "remove_voter", unlocked(Membership.remove_voter)
    yield Membership, "_settled", settled


@safeguard("voters change after an entry of the own term", "majorities do not overlap", of_quorum=True)
def _() -> Patches:
    """At all three doors: the core's own, and those of who asks it, which wait until the leader's image has
    all that came before it."""
    follow_core = Leadership.follow_core

    def propose(core: RaftCore, configuration: Configuration) -> int:
        if core.configuration_index > core.log.commit:
            raise ChangeRefused("the change before this one is not committed yet")
        return _propose_unchecked(core, configuration)

    def configure(leadership: Leadership, configuration: Configuration) -> "asyncio.Future[None]":
        draft = leadership.draft
        try:
            index = leadership._core.propose_configuration(configuration)
        except NotLeader:
            raise LeadershipLost from None
        if draft is not None:
            leadership._proposed(draft, index, ())
        leadership._wake()
        return leadership._applied(index)

    def follow(leadership: Leadership) -> None:
        had_draft = leadership.draft is not None
        follow_core(leadership)
        draft = leadership.draft
        if draft is not None and not had_draft and draft.index < leadership._core.log.last_index:
            leadership.draft = None  # it must hold the change before it

    def require_leader(membership: Membership) -> None:
        if not membership._core.is_leader:
            raise LeadershipLost

    yield RaftCore, "propose_configuration", propose
    yield Leadership, "configure", configure
    yield Leadership, "follow_core", follow
    yield Membership, "_require_leader", require_leader


# --- what the leader says


@safeguard("an answer waits until it is committed", "what was acknowledged is lost", of_quorum=True)
def _() -> Patches:
    def without(_: Leadership, index: int) -> "asyncio.Future[None]":
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    yield Leadership, "_applied", without


@safeguard("another leader's entry is no answer", "what was acknowledged is lost", of_quorum=True)
def _() -> Patches:
    def without(leadership: Leadership, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            for _, applied in leadership._waiting.pop(entry.index, ()):
                if not applied.done():
                    applied.set_result(None)

    yield Leadership, "applied", without


# --- leases


@safeguard("leases are granted by who surely leads", "a broker serves whose partitions were given to others")
def _() -> Patches:
    async def without(fencing: Fencing, heartbeat: Heartbeat) -> HeartbeatReply:
        image, sessions = fencing._feed.image, fencing._sessions
        fencing.follow_leadership()
        heard = sessions.heartbeat(image, heartbeat, fencing._clock.monotonic_ms())
        if heard.command is not None:
            await fencing._leadership.commit(heard.command)
        return sessions.answer(fencing._feed.image, heartbeat)

    yield Fencing, "heartbeat", without


@safeguard("who is about to be fenced gets no lease", "a broker serves whose partitions were given to others")
def _() -> Patches:
    overdue = BrokerSessions.overdue

    def without(sessions: BrokerSessions, image: Any, now_ms: int) -> Any:
        found = overdue(sessions, image, now_ms)
        for session in sessions._sessions.values():
            session.condemned = False
        return found

    yield BrokerSessions, "overdue", without


@safeguard("a new controller gives all a session", "a broker serves whose partitions were given to others")
def _() -> Patches:
    took_over = BrokerSessions.took_over

    def without(sessions: BrokerSessions, image: Any, now_ms: int) -> None:
        took_over(sessions, image, now_ms)
        for session in sessions._sessions.values():
            session.until_ms = now_ms

    yield BrokerSessions, "took_over", without


@safeguard("who is let in knows that it was fenced", "a broker serves by what was so before")
def _() -> Patches:
    unfence = BrokerSessions.unfence

    def without(sessions: BrokerSessions, image: Any, heartbeat: Heartbeat) -> Any:
        return unfence(sessions, image, replace(heartbeat, image_index=1 << 62))

    yield BrokerSessions, "unfence", without
