"""Random producers and zombies, late appends, failing disks, coordinators that restart anywhere: invariants
hold after each event.

Each seed is one history. Every producer is a process that may do what the protocol lets it. It continues when
another has taken its transactional id. At the end the world calms down: all transactions are decided,
and all requests are answered.
"""

import random
from itertools import pairwise

import pytest

from tierlog.broker.transactions.core.events import PartitionsResponse
from tierlog.broker.transactions.core.formats import decode_key, decode_value, encode_value
from tierlog.broker.transactions.core.states import TransactionState as S
from tierlog.protocol.errors import ErrorCode as E

SEEDS = range(80)
STEPS = 250
NAMES = ("t", "u")
PARTITIONS = ("a-0", "a-1", "b-0")
APPEND_ERRORS = (E.NOT_ENOUGH_REPLICAS, E.KAFKA_STORAGE_ERROR, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
FENCED = (E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING, E.INVALID_TXN_STATE)
FOLLOWERS = {
    None: {S.EMPTY},
    S.EMPTY: {S.EMPTY, S.ONGOING, S.PREPARE_ABORT, None},
    S.ONGOING: {S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT},
    S.PREPARE_COMMIT: {S.COMPLETE_COMMIT},
    S.PREPARE_ABORT: {S.COMPLETE_ABORT},
    S.COMPLETE_COMMIT: {S.EMPTY, S.ONGOING, S.PREPARE_ABORT, None},
    S.COMPLETE_ABORT: {S.EMPTY, S.ONGOING, S.PREPARE_ABORT, None},
}


class World:
    """The oracle: checks each reply against the log, when it is sent."""

    def __init__(self, bench, rng: random.Random) -> None:
        self.rng = rng
        self.bench = bench(transactional_id_expiration_ms=300_000, two_phase_commit=True)
        self.bench.on_reply = self._check
        self.requests: dict[int, tuple] = {}  # token -> (process, kind, producer)
        self.owners: dict[tuple, Process] = {}
        self.processes = [Process(self) for _ in range(rng.randrange(2, 6))]

    def _check(self, token: int, response) -> None:
        process, kind, producer, version = self.requests.get(token, self.current)
        if response.error != E.NONE:
            return
        stored = self.bench.stored(process.name)
        if isinstance(response, PartitionsResponse):
            if response.failed or stored is None:
                return
            assert producer == (stored.producer_id, stored.producer_epoch), "a zombie adds partitions"
            assert kind != "add" or stored.state is S.ONGOING
            return
        granted = process.name, response.producer_id, response.producer_epoch
        assert response.producer_epoch < 2**15 - 1, "a client got the last epoch"
        assert self.owners.setdefault(granted, process) is process, f"two producers have {granted}"
        if kind in ("commit", "abort"):
            self._check_end(process.name, kind, producer, granted[1:], version)

    def _check_end(self, name: str, kind: str, producer: tuple, granted: tuple, version: int) -> None:
        """The decision is in the log, for the transaction of this producer."""
        wanted = S.PREPARE_COMMIT if kind == "commit" else S.PREPARE_ABORT
        found = [each for each in history(self.bench, name) if each is not None and each.state.is_prepared]
        assert found and found[-1].state is wanted, f"the reply to {kind} is wrong"
        assert found[-1].client == granted
        if not found[-1].is_kept:
            epoch = producer[1] + 1 if version == 2 else producer[1]
            assert (found[-1].producer_id, found[-1].producer_epoch) == (producer[0], epoch)

    def disturb(self) -> None:
        rng, b = self.rng, self.bench
        match rng.randrange(14):
            case 0 | 1:
                b.advance(rng.choice((10, 500, 3_000)))
            case 2:
                b.advance(rng.choice((15_000, 70_000)))
            case 3 | 4:
                b.hold_appends = not b.hold_appends
            case 5 | 6:
                b.release(rng.choice(APPEND_ERRORS) if rng.random() < 0.3 else E.NONE)
            case 7:
                b.late()
            case 8:
                b.hold_markers = not b.hold_markers
            case 9 | 10:
                b.write_markers()
            case 11:
                b.append_error = rng.choice(APPEND_ERRORS) if rng.random() < 0.3 else E.NONE
            case 12:
                b.expire()
            case 13:
                b.restart(rng.randrange(len(b.held) + 1))


class Process:
    """A producer: a process with one transactional id."""

    def __init__(self, world: World) -> None:
        self.world, self.bench, self.rng = world, world.bench, world.rng
        self.name = self.rng.choice(NAMES)
        self.version = self.rng.choice((0, 2))
        self.producer: tuple[int, int] | None = None
        self.is_open = False
        self.pending: tuple[int, str] | None = None

    def ask(self, kind: str, *arguments, **more) -> None:
        entry = self, kind, self.producer, self.version
        self.world.current = entry
        ask = getattr(self.bench, kind)
        token = (
            ask(self.name, **more)
            if kind == "init"
            else ask(self.producer, *arguments, name=self.name, **more)
        )
        self.world.requests[token] = entry
        self.pending = token, kind

    def hear(self) -> None:
        """Takes the answer to its request, as a client does. It repeats a request without an answer."""
        if self.pending is None:
            return
        token, kind = self.pending
        if token in self.bench.lost:
            self.pending = None
        response = self.bench.response(token)
        if response is None:
            return
        self.pending = None
        if response.error in FENCED:
            if self.rng.random() < 0.7:  # else it is a zombie that does not give up
                self.producer, self.is_open = None, False
        elif response.error != E.NONE:
            return
        elif kind == "add":
            self.is_open = True
        elif kind != "verify":
            self.is_open = False
            if kind == "init" or self.version == 2:
                self.producer = response.producer_id, response.producer_epoch

    def act(self) -> None:
        self.hear()
        if self.pending is not None and self.rng.random() < 0.9:
            return
        roll = self.rng.random()
        if self.producer is None or roll < 0.1:
            expected = self.producer if self.producer and self.rng.random() < 0.5 else None
            keep, two_phase_commit = self.rng.random() < 0.3, self.rng.random() < 0.1
            self.ask("init", expected=expected, keep=keep, two_phase_commit=two_phase_commit)
        elif roll < 0.5:
            wanted = self.rng.sample(PARTITIONS, self.rng.randrange(1, 3))
            self.ask("add", *wanted, client_version=self.version)
        elif roll < 0.6:
            self.ask("verify", *PARTITIONS[:1])
        elif roll < 0.95:
            self.ask(self.rng.choice(("commit", "commit", "abort")), version=self.version)
        else:  # the process restarts and forgets everything
            self.producer, self.is_open, self.pending = None, False, None
            self.world.processes.remove(self)
            self.world.processes.append(Process(self.world))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_history_ends_with_all_transactions_decided(bench, seed):
    rng = random.Random(seed)
    world = World(bench, rng)
    b = world.bench
    if rng.random() < 0.3:  # near the end of its epochs
        b.store(producer_epoch=rng.randrange(32_758, 32_767), state=S.EMPTY)
    for _ in range(STEPS):
        if rng.random() < 0.7:
            rng.choice(world.processes).act()
        else:
            world.disturb()
    calm(b)
    assert b.waiting == [], f"requests never answered:\n{b.transcript[-2_000:]}"
    for name in NAMES:
        check_history(b, name)
        check_aborts(world, name)
        check_markers(b, name)
        assert not b.core.find(name) or not b.core.find(name).state.is_prepared
        check_memory(b, name)
    b.restart()
    for name in NAMES:
        check_memory(b, name)
        if b.core.find(name) is not None and b.core.find(name).has_timeout:
            assert b.core.find(name).state is not S.ONGOING, "a transaction outlives its timeout"


def calm(b) -> None:
    """Appends and markers succeed; each timeout passes."""
    b.append_error, b.hold_appends, b.hold_markers = E.NONE, False, False
    b.release()
    b.write_markers()
    b.advance(100_000)


def history(b, name: str) -> list:
    """All durable states of an id; None after it is deleted."""
    return [
        None if value is None else decode_value(name, value)
        for key, value in b.log
        if decode_key(key) == name
    ]


def check_history(b, name: str) -> None:
    """Each record follows from the one before: a decided transaction keeps its outcome, and epochs grow."""
    before = None
    for each in history(b, name):
        old, new = before and before.state, each and each.state
        if before is not None or each is not None:
            assert new in FOLLOWERS[old] or before is None, f"{name}: {old} -> {new}"
        if before is not None and each is not None:
            assert each.producer_id != before.producer_id or each.producer_epoch >= before.producer_epoch
        before = each


def check_aborts(world: World, name: str) -> None:
    """A producer whose transaction was aborted against its will is fenced by another epoch."""
    own = {
        producer
        for process, kind, producer, _ in world.requests.values()
        if (process.name, kind) == (name, "abort")
    }
    states = history(world.bench, name)
    for before, each in pairwise(states):
        if before is not None and each is not None and each.state is S.PREPARE_ABORT:
            assert each.client != before.client or before.client in own, f"{before.client} is not fenced"


def check_markers(b, name: str) -> None:
    """A transaction of version 2 has one outcome: its epoch is its own."""
    outcomes: dict[tuple[int, int], bool] = {}
    for each in b.markers:
        if each.transactional_id == name and each.client_version == 2:
            producer = each.producer_id, each.producer_epoch
            assert outcomes.setdefault(producer, each.commit) == each.commit, f"{producer} is torn"


def check_memory(b, name: str) -> None:
    found, stored = b.core.find(name), b.stored(name)
    if found is None or stored is None:
        assert found is stored
    else:
        assert encode_value(found) == encode_value(stored)
