"""Safeguards of the quorum: its log, its leader's responses, and the leases that it grants."""

import asyncio
from typing import Any

from msgspec.structs import replace

from simulator.switches import Patches, safeguard
from tierlog.metadata.controller.sessions import BrokerSessions
from tierlog.metadata.quorum.failure_detector import DeadBrokers
from tierlog.metadata.quorum.heartbeat_manager import BrokerHeartbeatManager
from tierlog.metadata.quorum.leadership import Leadership
from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.messages import Entry
from tierlog.metadata.raft.replication import Replication

# --- the log


@safeguard(
    "a Raft heartbeat commits only entries that the follower has",
    "an entry that was never committed is applied",
    of_quorum=True,
)
def _() -> Patches:
    broadcast = Replication.broadcast_heartbeats

    def without(replication: Replication) -> None:
        send, commit = replication._send, replication._log.commit
        replication._send = lambda message: send(
            replace(message, commit=commit) if isinstance(message, m.Heartbeat) else message
        )
        try:
            broadcast(replication)
        finally:
            replication._send = send

    yield Replication, "broadcast_heartbeats", without


@safeguard(
    "an append truncates only conflicting entries", "a late append removes newer entries", of_quorum=True
)
def _() -> Patches:
    merge = RaftLog.merge

    def without(log: RaftLog, entries: tuple[Entry, ...]) -> None:
        if entries and log.commit < (first := entries[0].index) <= log.last_index:
            del log._entries[first - log._before - 1 :]
            log.stable = min(log.stable, first - 1)
            log._configurations = [held for held in log._configurations if held[0] < first]
        merge(log, entries)

    yield RaftLog, "merge", without


# --- responses of the leader


@safeguard("the controller responds after the commit", "an acknowledged change is lost", of_quorum=True)
def _() -> Patches:
    def without(_: Leadership, index: int) -> "asyncio.Future[None]":
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    yield Leadership, "_applied", without


# --- leases


@safeguard(
    "a broken connection does not end a broker's session",
    "a broker serves partitions that other brokers now lead",
)
def _() -> Patches:
    mark_dead = BrokerHeartbeatManager.mark_dead

    def without(manager: BrokerHeartbeatManager, node_id: int) -> None:
        mark_dead(manager, node_id)
        broker = manager._publisher.image.brokers.get(node_id)
        if broker is not None:
            manager.on_process_end(node_id, broker.broker_epoch)

    yield BrokerHeartbeatManager, "mark_dead", without


@safeguard(
    "a broker's suspected failure is cleared when its session ends",
    "clients see no leader for a partition that has one",
)
def _() -> Patches:
    yield DeadBrokers, "brokers", property(lambda dead: frozenset(dead._suspicions))


@safeguard(
    "a new controller starts a session for every broker",
    "a broker serves partitions that other brokers now lead",
)
def _() -> Patches:
    on_leadership_gained = BrokerSessions.on_leadership_gained

    def without(sessions: BrokerSessions, image: Any, now_ms: int) -> None:
        on_leadership_gained(sessions, image, now_ms)
        for session in sessions._sessions.values():
            session.until_ms = now_ms

    yield BrokerSessions, "on_leadership_gained", without
