"""Voters as processes: when the leader is killed, the others elect a new one without a timeout."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tierlog.cli.cluster_files import free_ports

PROCESS = Path(__file__).parents[1] / "support" / "quorum_process.py"
NO_ELECTION_TIMEOUT = 1_000_000  # ticks: only a refused connection starts an election


class Voter:
    def __init__(self, node_id: int, process: asyncio.subprocess.Process) -> None:
        self.node_id, self.process = node_id, process

    async def expect(self, line: str) -> "Voter":
        assert self.process.stdout is not None
        while True:
            output = await self.process.stdout.readline()
            assert output, f"voter {self.node_id} ended"
            if output.decode().strip() == line:
                return self

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())


@pytest.fixture
async def voters(tmp_path: Path) -> AsyncIterator[dict[int, Voter]]:
    addresses = [f"{n}={port}" for n, port in enumerate(free_ports(3), 1)]
    started: dict[int, Voter] = {}
    try:
        for n in (1, 2, 3):
            command = (str(PROCESS), str(n), str(tmp_path / str(n)), str(NO_ELECTION_TIMEOUT), *addresses)
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(sys.executable, *command, stdin=pipe, stdout=pipe)
            started[n] = Voter(n, process)
        for voter in started.values():
            await voter.expect("serves")
        yield started
    finally:
        for voter in started.values():
            if voter.process.returncode is None:
                voter.process.kill()
            await voter.process.wait()


async def first_leader(voters: list[Voter]) -> Voter:
    waiting = [asyncio.ensure_future(voter.expect("leads")) for voter in voters]
    done, pending = await asyncio.wait(waiting, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    for other in pending:
        other.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return done.pop().result()


async def test_refused_connection_elects_the_next_leader(voters: dict[int, Voter]) -> None:
    voters[2].send("campaign")
    await voters[2].expect("leads")
    for n in (1, 3):
        await voters[n].expect("watches")
    voters[2].process.kill()
    new_leader = await first_leader([voters[1], voters[3]])
    assert new_leader.node_id in (1, 3)
