"""One voter as a separate process: `python quorum_process.py ID DIRECTORY ELECTION_TICKS ID=PORT…`.

It prints "serves" after the start, "watches" once it would detect the death of any other voter, and "leads"
each time it becomes leader. Commands on standard input: "campaign" starts an election, "commit COUNT AT_ONCE"
commits that many commands. It ends at the end of its input.
"""

import asyncio
import random
import socket
import sys
from pathlib import Path
from time import perf_counter
from uuid import UUID

from opened_metadata import opened_metadata
from raft_server import RaftServer

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.controller.commands import RegisterBroker
from tierlog.metadata.quorum.node import MetadataNode
from tierlog.metadata.quorum.transport import HttpPeers
from tierlog.metadata.raft.settings import RaftSettings

CLUSTER_ID, SECRET = "quorum-of-processes", b"a secret of the test"


async def serve(node_id: int, directory: Path, election_ticks: int, ports: dict[int, int]) -> None:
    tasks = TaskGroup(lambda name, failure: sys.exit(f"{name}: {failure}"))
    peers = HttpPeers(node_id, CLUSTER_ID, SECRET, tasks)
    node = opened_metadata(
        node_id,
        {n: f"http://127.0.0.1:{port}" for n, port in ports.items()},
        directory,
        OsFiles(),
        SystemClock(),
        random.Random(node_id),
        tasks,
        CLUSTER_ID,
        peers=peers,
        settings=RaftSettings(election_ticks=election_ticks),
    )
    server = RaftServer(node, SECRET)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", ports[node_id]))
    await node.start()
    await server.start(listener)
    print("serves", flush=True)
    tasks.spawn("reports the watch", report_watch(node, peers))
    tasks.spawn("reports leadership", report_leadership(node))
    await run_commands(node)
    await server.close()
    await node.stop()
    await tasks.close()


async def report_watch(node: MetadataNode, peers: HttpPeers) -> None:
    await node.membership.status_when(
        lambda _: peers.connected == node.voters.keys() - {node.node_id}, 3600.0
    )
    print("watches", flush=True)


async def report_leadership(node: MetadataNode) -> None:
    while True:
        await node.membership.status_when(lambda _: node.is_leader, 3600.0)
        print("leads", flush=True)
        await node.membership.status_when(lambda _: not node.is_leader, 3600.0)


async def run_commands(node: MetadataNode) -> None:
    """Run commands until the end of standard input."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := await reader.readline():
        command, *arguments = line.decode().split()
        if command == "campaign":
            node.core.campaign()
            node.receive(())
        elif command == "commit":
            seconds = await commit(node, *map(int, arguments))
            print(f"committed in {seconds:.3f} s", flush=True)


async def commit(node: MetadataNode, count: int, at_once: int) -> float:
    """Seconds to commit `count` commands, each an entry, with `at_once` in flight."""
    command = RegisterBroker(broker_id=1, incarnation=UUID(int=1), host="h", port=1, admin_url="")
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await node.submit(command)

    began = perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    return perf_counter() - began


if __name__ == "__main__":
    number, place, ticks, *voters = sys.argv[1:]
    asyncio.run(
        serve(
            int(number),
            Path(place),
            int(ticks),
            {int(voter.split("=")[0]): int(voter.split("=")[1]) for voter in voters},
        )
    )
