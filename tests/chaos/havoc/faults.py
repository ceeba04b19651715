"""Faults of the cluster. Each is a context manager: entering injects the fault, leaving heals it.

During a fault of a minority, the majority reaches each other and the clients, and must serve them. Other
faults must only lose nothing, and service must return when they are healed.
"""

import errno
import itertools
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import RawIOBase
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from havoc.network import STORE
from havoc.nodes import HANGS, ChaosFailed, Node, until
from havoc.stage import APART, DEATH_S, SILENCE_S, TIERED, Stage, fault
from havoc.store import Store
from tierlog.config.topic import TRANSACTIONS_TOPIC

LOSS = 0.05
HOUR_S = 3600
CHUNK = 1 << 20
FILL_EVERY_S = 0.1
LEFT_ON_DISK = 64 << 10
"""Free space for a second or two of records. Then the disk is full."""
VOTER_CHANGE_WITHIN_S = 60.0
REFUSED = b"waiting for the session of another process to end"
"""Log message of a second process of a broker."""


# --- processes that die


@contextmanager
def _killed(*nodes: Node) -> Iterator[str]:
    for node in nodes:
        node.kill()
    yield f"SIGKILL of {_names(nodes)}"
    for node in nodes:
        node.begin()
    for node in nodes:
        node.wait_until_it_serves()


@fault("kill-leader", DEATH_S)
def _kill_leader(stage: Stage) -> Iterator[str]:
    with _killed(stage.leader()) as done:
        yield done


@fault("kill-follower", DEATH_S)
def _kill_follower(stage: Stage) -> Iterator[str]:
    with _killed(stage.follower()) as done:
        yield done


@fault("kill-controller", DEATH_S)
def _kill_controller(stage: Stage) -> Iterator[str]:
    with _killed(stage.controller()) as done:
        yield done


@fault("kill-coordinator", DEATH_S)
def _kill_coordinator(stage: Stage) -> Iterator[str]:
    """Kill the coordinator of a third of the transactions and, mostly of others, of a third of the groups."""
    leader = stage.cluster.partitions(TRANSACTIONS_TOPIC)[0]["leader"]
    with _killed(stage.cluster.nodes[leader]) as done:
        yield done


@fault("kill-all", None)
def _kill_all(stage: Stage) -> Iterator[str]:
    with _killed(*stage.cluster.nodes.values()) as done:
        yield done


@fault("kill-both", DEATH_S, only=APART)
def _kill_both(stage: Stage) -> Iterator[str]:
    """Kill the leader together with the broker that would replace it."""
    with _killed(stage.leader(), stage.controller()) as done:
        yield done


@fault("kill-voters", None, only=APART)
def _kill_voters(stage: Stage) -> Iterator[str]:
    with _killed(*stage.cluster.voters.values()) as done:
        yield done


# --- processes that hang


@contextmanager
def _stopped(*nodes: Node) -> Iterator[str]:
    for node in nodes:
        node.signal(signal.SIGSTOP)
    yield f"SIGSTOP of {_names(nodes)}"
    for node in nodes:
        node.signal(signal.SIGCONT)


@fault("stop-leader", SILENCE_S)
def _stop_leader(stage: Stage) -> Iterator[str]:
    with _stopped(stage.leader()) as done:
        yield done


@fault("stop-follower", SILENCE_S)
def _stop_follower(stage: Stage) -> Iterator[str]:
    with _stopped(stage.follower()) as done:
        yield done


@fault("stop-controller", SILENCE_S)
def _stop_controller(stage: Stage) -> Iterator[str]:
    with _stopped(stage.controller()) as done:
        yield done


@fault("stop-all", None)
def _stop_all(stage: Stage) -> Iterator[str]:
    with _stopped(*stage.cluster.nodes.values()) as done:
        yield done


# --- a quorum that changes


@fault("change-voters", SILENCE_S, hurts_early=True)
def _change_voters(stage: Stage) -> Iterator[str]:
    """Remove the quorum's leader from the voters while it runs. It continues as an observer until it is
    added again."""
    node = stage.controller()
    _remove_voter(stage, node)
    yield f"{node}, which led the quorum, votes no more"
    _add_voter(stage, node)


def _remove_voter(stage: Stage, node: Node) -> None:
    path = f"/v1/quorum/voters/{node.id}"
    until(lambda: stage.controller().admin.delete(path), "it votes no more", VOTER_CHANGE_WITHIN_S)


def _add_voter(stage: Stage, node: Node) -> None:
    address = {"id": node.id, "url": f"http://{node.place.admin}"}
    until(
        lambda: stage.controller().admin.post("/v1/quorum/voters", address),
        "it votes again",
        VOTER_CHANGE_WITHIN_S,
    )


# --- a network that fails


@contextmanager
def _cut(stage: Stage, what: str, *cuts: tuple[set[int], set[int]]) -> Iterator[str]:
    for sources, targets in cuts:
        stage.cluster.network.cut(sources, targets)
    yield what
    stage.cluster.network.heal()


@fault("isolate-leader", SILENCE_S)
def _isolate_leader(stage: Stage) -> Iterator[str]:
    node = stage.leader()
    one, others = {node.id}, stage.all_nodes() - {node.id}
    with _cut(stage, f"{node} cut off from nodes and clients", (one, others), (others, one)) as done:
        yield done


@fault("part-leader", SILENCE_S)
def _part_leader(stage: Stage) -> Iterator[str]:
    """Isolate a leader from the other nodes only: clients keep their connections to the former leader."""
    node = stage.leader()
    one, others = {node.id}, set(stage.cluster.nodes) - {node.id}
    with _cut(
        stage, f"{node} cut off from the other nodes, not from clients", (one, others), (others, one)
    ) as done:
        yield done


@fault("isolate-majority", None)
def _isolate_majority(stage: Stage) -> Iterator[str]:
    with _isolated(stage, stage.leader(), stage.cluster.brokers) as done:
        yield done


@fault("isolate-controller", SILENCE_S, only=APART)
def _isolate_controller(stage: Stage) -> Iterator[str]:
    node = stage.controller()
    one, others = {node.id}, stage.all_nodes() - {node.id}
    with _cut(stage, f"{node}, which leads the quorum, cut off", (one, others), (others, one)) as done:
        yield done


@fault("isolate-voters", None, only=APART)
def _isolate_voters(stage: Stage) -> Iterator[str]:
    """Brokers reach each other and clients, but not the quorum: their leases expire."""
    with _isolated(stage, stage.controller(), stage.cluster.voters) as done:
        yield done


@fault("unheard-leader", SILENCE_S, only=APART)
def _unheard_leader(stage: Stage) -> Iterator[str]:
    """Isolate a leader from the voters only. It must stop serving by itself, since others are elected."""
    node = stage.leader()
    one, voters = {node.id}, set(stage.cluster.voters)
    with _cut(stage, f"{node} cut off from the voters alone", (one, voters), (voters, one)) as done:
        yield done


@contextmanager
def _isolated(stage: Stage, first: Node, of: Mapping[int, Node]) -> Iterator[str]:
    """Isolate this node and one other, each separately: two of three."""
    all_nodes = stage.all_nodes()
    gone = [first.id, min(node for node in of if node != first.id)]
    cuts = [cut for node in gone for cut in (({node}, all_nodes - {node}), (all_nodes - {node}, {node}))]
    with _cut(stage, f"nodes {gone} cut off from all others", *cuts) as done:
        yield done


@fault("one-way-out", SILENCE_S)
def _one_way_out(stage: Stage) -> Iterator[str]:
    node = stage.leader()
    with _cut(stage, f"what {node} sends is lost", ({node.id}, stage.all_nodes() - {node.id})) as done:
        yield done


@fault("one-way-in", SILENCE_S)
def _one_way_in(stage: Stage) -> Iterator[str]:
    node = stage.leader()
    with _cut(stage, f"what is sent to {node} is lost", (stage.all_nodes() - {node.id}, {node.id})) as done:
        yield done


@fault("loss", DEATH_S)
def _loss(stage: Stage) -> Iterator[str]:
    stage.cluster.network.lose(LOSS)
    yield f"{LOSS:.0%} of all packets lost"
    stage.cluster.network.heal()


# --- clocks


@contextmanager
def _clock(node: Node, seconds: int) -> Iterator[str]:
    node.control.set(clock_s=seconds)
    yield f"wall clock of {node} {seconds:+} s"
    node.control.set()


@fault("clock-forward", DEATH_S, "shim")
def _clock_forward(stage: Stage) -> Iterator[str]:
    with _clock(stage.leader(), HOUR_S) as done:
        yield done


@fault("clock-back", DEATH_S, "shim")
def _clock_back(stage: Stage) -> Iterator[str]:
    with _clock(stage.controller(), -HOUR_S) as done:
        yield done


@fault("wrong-clocks", DEATH_S, "shim", hurts_early=True)
def _wrong_clocks(stage: Stage) -> Iterator[str]:
    """Set wall clocks wrong by more than every grace and expiration, and restart a leader during it."""
    nodes = [*stage.cluster.nodes.values()]
    hours = dict(zip(nodes, itertools.cycle((30, -30, 3, -3)), strict=False))
    for node, ahead in hours.items():
        node.control.set(clock_s=ahead * HOUR_S)
    with _killed(leader := stage.leader()):
        pass
    leader.control.set(clock_s=-hours[leader] * HOUR_S)
    clocks = ", ".join(f"{node} {ahead:+} h" for node, ahead in hours.items())
    yield f"wall clocks of {clocks}; SIGKILL of {leader}, and back over zero"
    for node in nodes:
        node.control.set()


# --- disks


@fault("disk-full", DEATH_S, "disks")
def _disk_full(stage: Stage) -> Iterator[str]:
    with _disk_filled(stage.cluster.small_disk) as done:
        yield done


@fault("disk-full-controller", SILENCE_S, "disks", only=APART)
def _disk_full_controller(stage: Stage) -> Iterator[str]:
    with _disk_filled(stage.controller()) as done:
        yield done


@contextmanager
def _disk_filled(node: Node) -> Iterator[str]:
    """Fill the disk with a foreign file, including the space that the node frees; delete it at the end."""
    healed = threading.Event()
    ballast = node.data / "ballast"
    with ballast.open("wb", buffering=0) as file:
        _fill(file, node.data)
        eater = threading.Thread(target=_keep_full, args=(file, node.data, healed), daemon=True)
        eater.start()
        yield f"disk of {node} full"
        healed.set()
        eater.join()
    ballast.unlink()
    _restart_if_it_ended(node)


def _keep_full(file: RawIOBase, disk: Path, healed: threading.Event) -> None:
    while not healed.wait(FILL_EVERY_S):
        _fill(file, disk)


def _fill(file: RawIOBase, disk: Path) -> None:
    with suppress(OSError):  # the node writes too
        while (free := shutil.disk_usage(disk).free - LEFT_ON_DISK) > 0:
            file.write(bytes(min(free, CHUNK)))


@fault("fsync-error", DEATH_S, "shim")
def _fsync_error(stage: Stage) -> Iterator[str]:
    with _without_fsync(stage.leader()) as done:
        yield done


@fault("fsync-error-controller", DEATH_S, "shim", only=APART)
def _fsync_error_controller(stage: Stage) -> Iterator[str]:
    """An idle quorum writes nothing, so that it would not notice: change something."""
    with _without_fsync(stage.controller()) as done:
        _change_metadata(stage)
        yield done


def _change_metadata(stage: Stage) -> None:
    """Set a setting of the topic that has no effect on it, to another value each time."""
    entry = ConfigEntry(
        "delete.retention.ms", str(time.monotonic_ns()), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, stage.topic, incremental_configs=[entry])
    admin = AdminClient({**stage.cluster.client(), "log_level": 0})
    with suppress(KafkaException):  # the controller may fail with it
        admin.incremental_alter_configs([resource])[resource].result(VOTER_CHANGE_WITHIN_S)


@contextmanager
def _without_fsync(node: Node) -> Iterator[str]:
    """Make fsync fail. Healed as by an operator: kill the process and start it on a working disk."""
    node.control.set(fsync=errno.EIO)
    yield f"fsync of {node} fails with EIO"
    node.control.set()
    node.kill()
    node.start()


@fault("fsync-hang-controller", SILENCE_S, "shim", only=APART)
def _fsync_hang_controller(stage: Stage) -> Iterator[str]:
    """Make fsync of the quorum's leader hang just when it must commit an election: a broker was killed."""
    voter, leader = stage.controller(), stage.leader()
    voter.control.set(fsync=HANGS)
    leader.kill()
    yield f"fsync of {voter} hangs, SIGKILL of {leader}"
    led_on = stage.controller() is voter
    voter.control.set()
    leader.start()
    if led_on:
        raise ChaosFailed(f"{voter} led the quorum on although its disk hung")


@fault("wipe", DEATH_S)
def _wipe(stage: Stage) -> Iterator[str]:
    with _wiped(stage, stage.leader()) as done:
        yield done


@fault("wipe-controller", DEATH_S, only=APART)
def _wipe_controller(stage: Stage) -> Iterator[str]:
    with _wiped(stage, stage.controller()) as done:
        yield done


@contextmanager
def _wiped(stage: Stage, node: Node) -> Iterator[str]:
    """Replace a disk as in the runbook: remove the voter, start it with an empty disk, add it again."""
    node.kill()
    node.wipe()
    yield f"{node} killed, its disk replaced"
    if node.votes:
        _remove_voter(stage, node)
    node.begin()
    if node.votes:
        _add_voter(stage, node)
    node.wait_until_it_serves()


# --- mistakes of operators


@fault("twin", DEATH_S, only=APART)
def _twin(stage: Stage) -> Iterator[str]:
    """Start a second process with the id of a live broker. It waits for the broker's session to end, and
    never serves. The quorum ignores one with a voter's id, since its directory id is unknown."""
    node = stage.leader()
    with node.twin(node.data.parent / "twin") as other:
        until(
            lambda: REFUSED in other.log_path.read_bytes(),
            "the second process is refused",
            VOTER_CHANGE_WITHIN_S,
        )
        yield f"a second process of {node}"
        if not other.running or not node.running:
            raise ChaosFailed(f"of two processes of {node}, one has ended")


@fault("restored-directory", None, hurts_early=True)
def _restored_directory(stage: Stage) -> Iterator[str]:
    """Put a follower back to an older copy of its disk, from a clean stop. Then kill the leader, while only
    one replica is in sync."""
    node, copy = stage.follower(), stage.follower().data.parent / "copy"
    node.stop()
    node.copy_directories(copy)
    node.start()
    until(
        lambda: all(node.id in row["in_sync"] for row in _of(stage, node)),
        "it is in sync",
        VOTER_CHANGE_WITHIN_S,
    )
    node.kill()
    node.put_back(copy)
    node.begin()
    with _killed(stage.leader()) as done:
        yield f"{node} put back to an older copy, {done}"
    node.wait_until_it_serves()


def _of(stage: Stage, node: Node) -> list[dict[str, Any]]:
    """Partitions with a replica on the node."""
    return [row for row in stage.partitions() if node.id in row["replicas"]]


# --- an object store that fails: producers do not notice, and only a busy machine takes any of their time


@fault("store-kill", DEATH_S, only=TIERED)
def _store_kill(stage: Stage) -> Iterator[str]:
    store = _store(stage)
    store.kill()
    yield f"SIGKILL of {store}"
    store.start()


@fault("store-stop", DEATH_S, only=TIERED)
def _store_stop(stage: Stage) -> Iterator[str]:
    store = _store(stage)
    store.signal(signal.SIGSTOP)
    yield f"SIGSTOP of {store}"
    store.signal(signal.SIGCONT)


@fault("store-cut", DEATH_S, only=TIERED)
def _store_cut(stage: Stage) -> Iterator[str]:
    node = stage.cluster.nodes[stage.cluster.partitions(stage.tiered)[0]["leader"]]
    one, there = {node.id}, {STORE}
    with _cut(stage, f"{node} cut off from {_store(stage)}", (one, there), (there, one)) as done:
        yield done


@fault("store-slow", DEATH_S, only=TIERED)
def _store_slow(stage: Stage) -> Iterator[str]:
    store = _store(stage)
    with store.slow():
        yield f"{store} runs a tenth of the time"


@fault("store-and-leader", DEATH_S, only=TIERED)
def _store_and_leader(stage: Stage) -> Iterator[str]:
    """Kill a leader and stop the store: the next leader finds unfinished uploads and an unresponsive
    store."""
    store = _store(stage)
    node = stage.cluster.nodes[stage.cluster.partitions(stage.tiered)[0]["leader"]]
    store.signal(signal.SIGSTOP)
    with _killed(node) as done:
        yield f"SIGSTOP of {store}, {done}"
        store.signal(signal.SIGCONT)


def _store(stage: Stage) -> Store:
    if stage.store is None:
        raise ChaosFailed("there is no object store")
    return stage.store


def _restart_if_it_ended(node: Node) -> None:
    if not node.running:
        node.kill()
        node.start()


def _names(nodes: tuple[Node, ...]) -> str:
    if not nodes:
        raise ChaosFailed("no node to inject the fault into")
    return ", ".join(str(node) for node in nodes)
