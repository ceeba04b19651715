"""Random clients, late appends, failing disks: invariants hold after each event, no request waits forever.

Each seed is one history. At the end the world calms down (appends become durable, members follow the protocol
as clients do): every group must come to rest with an assignment for each member, and every request must have
been answered once.
"""

import random

import pytest

from tierlog.base.types import TopicPartition
from tierlog.broker.groups.core.events import (
    DeleteOffsets,
    ExpireOffsets,
    JoinResponse,
    Leaver,
)
from tierlog.broker.groups.core.formats import (
    OffsetKey,
    decode_key,
    decode_offset,
)
from tierlog.protocol.errors import ErrorCode as E

SEEDS = range(60)
STEPS = 150
APPEND_ERRORS = (E.NOT_ENOUGH_REPLICAS, E.KAFKA_STORAGE_ERROR, E.NOT_LEADER_OR_FOLLOWER)


class Client:
    """A consumer that may do what the protocol lets it, and sometimes what it does not."""

    def __init__(self, bench, rng: random.Random, number: int) -> None:
        self.bench, self.rng = bench, rng
        self.instance = f"static-{number}" if rng.random() < 0.3 else None
        self.member_id, self.generation, self.assigned = "", -1, False
        self.pending: int | None = None
        self.last_request = ""
        self.joined = False
        self.leads: list[str] = []
        self.protocols = rng.choice([(("range", b""),), (("sticky", b""), ("range", b""))])

    def hear(self) -> None:
        """Takes the answer to its last request, as a real client does."""
        response = self.bench.response(self.pending) if self.pending else None
        if response is None:
            return
        self.pending = None
        error = response.error
        if error == E.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        elif error in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID):
            self.member_id, self.generation, self.assigned = "", -1, False
        elif error != E.NONE:
            self.assigned = False
        elif isinstance(response, JoinResponse):
            self.member_id, self.generation, self.assigned = response.member_id, response.generation, False
            self.leads = [name for name, _, _ in response.members] if not response.skip_assignment else []
            self.joined = True
            return
        elif self.last_request == "sync":
            self.assigned = True
        self.joined = False

    def join(self) -> None:
        self.pending, self.last_request = (
            self.bench.join(
                self.member_id,
                instance=self.instance,
                protocols=self.protocols,
                member_id_required=True,
                may_skip_assignment=True,
            ),
            "join",
        )
        self.joined = False

    def sync(self) -> None:
        given = {name: name.encode() for name in self.leads}
        self.pending = self.bench.sync(
            self.member_id, self.generation, given, group_instance_id=self.instance
        )
        self.last_request, self.joined = "sync", False

    def heartbeat(self) -> None:
        self.pending = self.bench.beat(self.member_id, self.generation, group_instance_id=self.instance)
        self.last_request = "heartbeat"

    def follow(self) -> None:
        """The next step of a well-behaved client."""
        self.hear()
        if self.pending is not None:
            return
        if self.joined:
            self.sync()
        elif self.assigned:
            self.heartbeat()
        else:
            self.join()

    def act(self) -> None:
        roll = self.rng.random()
        if roll < 0.7:
            self.follow()
        elif roll < 0.78:
            self.bench.commit(
                self.rng.randrange(100),
                topic=self.rng.choice("tu"),
                member_id=self.member_id,
                generation=self.generation,
            )
        elif roll < 0.84 and self.member_id:
            self.bench.leave(Leaver(self.member_id, self.instance))
        elif roll < 0.90:  # the process restarts and forgets everything
            self.member_id, self.generation, self.assigned, self.pending = "", -1, False, None
            self.joined = False
        elif roll < 0.95:
            self.join()
        else:
            self.sync()


def disturb(bench, rng: random.Random) -> None:
    match rng.randrange(13):
        case 0 | 1 | 2:
            bench.advance(rng.choice((10, 500, 5_000)))
        case 3:
            bench.advance(40_000)
        case 4:
            bench.hold_appends = not bench.hold_appends
        case 5 | 6:
            bench.release(rng.choice(APPEND_ERRORS) if rng.random() < 0.2 else E.NONE)
        case 7:
            bench.delete()
        case 8:
            bench.recreate("u")
        case 9:
            bench.ask(DeleteOffsets, group_id="g", partitions=(TopicPartition("t", 0),))
        case 10:
            bench.send(ExpireOffsets())
        case 11:
            bench.commit(rng.randrange(100), topic="s")
        case 12:
            bench.late()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_history_ends_in_a_stable_state(bench, seed):
    rng = random.Random(seed)
    b = bench(group_initial_rebalance_delay_ms=rng.choice((0, 3_000)), group_max_size=rng.choice((3, 100)))
    clients = [Client(b, rng, number) for number in range(rng.randrange(1, 6))]
    for _ in range(STEPS):
        if rng.random() < 0.75:
            rng.choice(clients).act()
        else:
            disturb(b, rng)
    b.hold_appends = False
    b.release()
    survivors = clients[:3]
    for _ in range(40):
        for client in survivors:
            client.follow()
        b.advance(2_500)
    for client in survivors:
        client.hear()
    assert b.state == "Stable"
    assert all(client.assigned for client in survivors), b.transcript[-2_000:]
    assert len(b.core.describe("g").members) == len(survivors)
    b.advance(400_000)
    assert b.waiting == [], f"requests never answered:\n{b.transcript[-2_000:]}"
    check_offsets(b)


def check_offsets(b) -> None:
    """Memory matches the log for the current topics, and a restart finds the same."""
    said = {}
    for record in b.log:
        key = decode_key(record.key)
        if isinstance(key, OffsetKey):
            place = key.group_id, TopicPartition(key.topic, key.partition)
            said[place] = decode_offset(record.value) if record.value is not None else None
    said = {
        place: committed
        for place, committed in said.items()
        if committed is not None and committed.topic_id == b.topics[place[1].topic]
    }
    kept = {("g", place): committed for place, committed in b.core.offsets("g").items()}
    assert kept == said
    b.restart()
    assert {("g", place): committed for place, committed in b.core.offsets("g").items()} == said
