"""Voters as processes: the leader is killed, and the others need not wait to notice."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

PROCESS = Path(__file__).parents[1] / "support" / "quorum_process.py"
NEVER_BY_SILENCE = 1_000_000  # ticks: only a proven death makes anyone stand for election


class Voter:
    def __init__(self, node_id: int, process: asyncio.subprocess.Process) -> None:
        self.node_id, self.process = node_id, process

    async def says(self, line: str) -> "Voter":
        assert self.process.stdout is not None
        while True:
            said = await self.process.stdout.readline()
            assert said, f"voter {self.node_id} ended"
            if said.decode().strip() == line:
                return self

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in held]
    for server in held:
        server.close()
    return ports


@pytest.fixture
async def voters(tmp_path: Path) -> AsyncIterator[dict[int, Voter]]:
    addresses = [f"{n}={port}" for n, port in enumerate(free_ports(3), 1)]
    found: dict[int, Voter] = {}
    try:
        for n in (1, 2, 3):
            command = (str(PROCESS), str(n), str(tmp_path / str(n)), str(NEVER_BY_SILENCE), *addresses)
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(sys.executable, *command, stdin=pipe, stdout=pipe)
            found[n] = Voter(n, process)
        for voter in found.values():
            await voter.says("serves")
        yield found
    finally:
        for voter in found.values():
            if voter.process.returncode is None:
                voter.process.kill()
            await voter.process.wait()


async def first_to_lead(voters: list[Voter]) -> Voter:
    waiting = [asyncio.ensure_future(voter.says("leads")) for voter in voters]
    done, pending = await asyncio.wait(waiting, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    for other in pending:
        other.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return done.pop().result()


async def test_the_next_leader_comes_with_the_refused_connection(voters: dict[int, Voter]) -> None:
    voters[2].tell("campaign")
    await voters[2].says("leads")
    for n in (1, 3):
        await voters[n].says("watches")
    voters[2].process.kill()
    heir = await first_to_lead([voters[1], voters[3]])
    assert heir.node_id in (1, 3)
