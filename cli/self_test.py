"""Measurements of `tierlog cluster self-test`: disks, object store and network, against what is needed.

Each node measures its own disks and store (`POST /v1/self-test`). The network is measured from this machine
to each broker, by requests on the Kafka port; on a node's host that is the network between nodes.
"""

import socket
import struct
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from tierlog.cli.admin import AdminApi
from tierlog.cli.errors import CliError
from tierlog.cli.observation import NOT_FOUND, in_parallel
from tierlog.client.connection import OpenSocket

MB = 1_000_000
DISK, STORE, NETWORK = TESTS = ("disk", "store", "network")
LATE_S = 12.0
"""A node ends the test of a directory or store so long after its seconds, or a little earlier."""

MARGIN_S = 25.0
"""Time beyond that for the removal of objects and for the response."""

DIRECTORIES_UNKNOWN = 2
"""Directories of a node that does not list them, for its time."""

NONE_LISTED: Mapping[int, int] = {}
ROUND_TRIPS = 50
CONNECT_TIMEOUT_S = 3.0
_API_VERSIONS = struct.pack(">hhih", 18, 0, 0, -1)


class Verdict(StrEnum):
    OK = "ok"
    SLOW = "slow"  # works, and holds the cluster back
    BAD = "bad"  # below what the cluster can work with
    UNKNOWN = "not measured"


class Need(NamedTuple):
    """`good`: what is needed. `least`: beyond it the cluster does not work as it should. A rate is in MB/s
    and a time in milliseconds."""

    what: str
    unit: str
    good: float
    least: float
    why: str

    def verdict(self, value: float) -> Verdict:
        sign = 1 if self.unit == "ms" else -1
        if value * sign <= self.good * sign:
            return Verdict.OK
        return Verdict.SLOW if value * sign <= self.least * sign else Verdict.BAD


NEEDS: Mapping[str, Need] = {
    "write_bytes_per_s": Need("sequential write", "MB/s", 100, 30, "twice the planned rate of a host"),
    "sync_p99_ms": Need("flush of 4 KiB, p99", "ms", 20, 200, "each commit of the quorum waits for flushes"),
    "put_p50_ms": Need("put of 1 KiB, median", "ms", 200, 2000, "manifests are written after each segment"),
    "get_p50_ms": Need("get of 1 KiB, median", "ms", 200, 2000, "consumers of history wait for it"),
    "list_p50_ms": Need("list, median", "ms", 500, 5000, "the remote storage cleanup lists the bucket"),
    "put_bytes_per_s": Need("put of 8 MiB", "MB/s", 20, 5, "eight segments are uploaded at a time"),
    "get_bytes_per_s": Need("get of 8 MiB", "MB/s", 20, 5, "reads ahead of consumers of history"),
    "round_trip_p99_ms": Need("round trip, p99", "ms", 10, 200, "acks=all waits for followers; elections"),
}
"""Measurement -> what it is compared with. The limits are those of a broker at 45 MB/s with three replicas,
and of the default timeouts; docs/howto/self-test.md explains them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """`where`: a directory, the store or an address. `value`: None: not measured, and `problem` says why."""

    node: int | None
    where: str
    what: str
    value: float | None = None
    unit: str = ""
    needed: float | None = None
    verdict: Verdict
    problem: str = ""

    def row(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict.value}


def measure_nodes(
    urls: Mapping[int, str],
    responding: Container[int],
    tests: Sequence[str],
    seconds: float,
    disk_bytes: int,
    directories: Mapping[int, int] = NONE_LISTED,
) -> Iterator[Line]:
    """The nodes measure themselves, all at once. `responding`: nodes that are asked. `directories`: how many
    each has, which it measures one after the other."""
    own = [test for test in (DISK, STORE) if test in tests]
    if not own:
        return
    body = {"tests": own, "seconds": seconds, "disk_bytes": disk_bytes}
    usual = max(directories.values(), default=DIRECTORIES_UNKNOWN)
    limits_s = {node: time_limit_s(own, seconds, directories.get(node, usual)) for node in urls}
    failures: dict[int, str] = {}

    def measure(node: int) -> dict[str, Any] | None:
        if node not in responding:
            failures[node] = "the node does not respond"
            return None
        try:
            found: dict[str, Any] = AdminApi(urls[node], timeout_s=limits_s[node]).post("/v1/self-test", body)
            return found
        except CliError as failure:
            is_older = failure.status == NOT_FOUND
            failures[node] = "an earlier version has no self-test" if is_older else failure.message
            return None

    nodes = sorted(urls)
    longest_s = max(limits_s.values(), default=0.0)
    answers = in_parallel(
        measure, nodes, deadline_s=longest_s, on_late=lambda node: failures.update({node: _late(longest_s)})
    )
    for node, answer in zip(nodes, answers, strict=True):
        if answer is None:
            yield Line(
                node=node,
                where=urls[node],
                what=" and ".join(own),
                verdict=Verdict.UNKNOWN,
                problem=failures.get(node, "no answer"),
            )
        else:
            yield from _lines_of_node(node, answer)


def time_limit_s(tests: Sequence[str], seconds: float, directories: int) -> float:
    """Time in which a node with so many directories has tested them and its store."""
    count = (directories if DISK in tests else 0) + (STORE in tests)
    return (seconds + LATE_S) * count + MARGIN_S


def _lines_of_node(node: int, answer: Mapping[str, Any]) -> Iterator[Line]:
    for disk in answer["disks"]:
        yield from _lines(node, disk["directory"], DISK, disk)
    if (store := answer["store"]) is not None:
        yield from _lines(node, "object store", STORE, store)
        if left := store.get("left_objects"):
            yield Line(
                node=node,
                where="object store",
                what="temporary objects",
                verdict=Verdict.BAD,
                problem=f"may be left: {', '.join(left)}",
            )


def _lines(node: int | None, where: str, test: str, measured: Mapping[str, Any]) -> Iterator[Line]:
    for name, need in NEEDS.items():
        if name in measured:
            value = measured[name] / MB if need.unit == "MB/s" else measured[name]
            yield Line(
                node=node,
                where=where,
                what=need.what,
                value=round(value, 2),
                unit=need.unit,
                needed=need.good,
                verdict=need.verdict(value),
            )
    if problem := measured.get("error"):
        yield Line(node=node, where=where, what=test, verdict=Verdict.UNKNOWN, problem=str(problem))


# --- network


def measure_network(
    brokers: Sequence[tuple[int, str, int]], open_socket: OpenSocket, seconds: float
) -> Iterator[Line]:
    """From this machine to each broker: node, host and port. One after the other, so that they do not share
    the time of this process."""

    def measure(broker: tuple[int, str, int]) -> dict[str, Any]:
        try:
            return round_trips(broker[1:], open_socket, seconds)
        except Exception as failure:  # refused, late, or no login
            return {"error": str(failure) or type(failure).__name__}

    for broker in brokers:
        [found] = in_parallel(measure, [broker], deadline_s=seconds + CONNECT_TIMEOUT_S)
        where = f"{broker[1]}:{broker[2]}"
        yield from _lines(
            broker[0],
            where,
            NETWORK,
            {"error": _late(seconds + CONNECT_TIMEOUT_S)} if found is None else found,
        )


def round_trips(address: tuple[str, int], open_socket: OpenSocket, seconds: float) -> dict[str, Any]:
    """Times of ApiVersions requests, which a broker answers without other work. Raises OSError."""
    times: list[float] = []
    with open_socket(address, CONNECT_TIMEOUT_S) as opened:
        opened.settimeout(CONNECT_TIMEOUT_S)
        begin = time.perf_counter()
        while len(times) < ROUND_TRIPS and time.perf_counter() - begin < seconds:
            before = time.perf_counter()
            opened.sendall(struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS)
            _read(opened, struct.unpack(">i", _read(opened, 4))[0])
            times.append(time.perf_counter() - before)
    ordered = sorted(times)
    return {"round_trip_p99_ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1000}


def _read(opened: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = opened.recv(count - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return data


def _late(limit_s: float) -> str:
    return f"no answer within {limit_s:g} s"
