"""Figures of a metadata quorum of three processes on loopback with default settings.

Measures commits per second and the time to replace a killed leader. `python metadata_quorum.py [ROUNDS]`;
the last line is JSON.
"""

import asyncio
import json
import socket
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter

PROCESS = Path(__file__).parents[1] / "support" / "quorum_process.py"
ELECTION_TICKS = 10


class ControllerProcess:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._said: list[str] = []
        self._more = asyncio.Condition()
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            async with self._more:
                self._said.append(line.decode().strip())
                self._more.notify_all()

    async def says(self, start: str) -> str:
        """The next output line with this prefix; waits for it."""
        async with self._more:
            await self._more.wait_for(lambda: any(line.startswith(start) for line in self._said))
            line = next(line for line in self._said if line.startswith(start))
            self._said.remove(line)
            return line

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def close(self) -> None:
        self.kill()
        await self._process.wait()
        await self._reading


async def started(directory: Path, stack: AsyncExitStack) -> dict[int, ControllerProcess]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    addresses = [f"{n}={server.getsockname()[1]}" for n, server in enumerate(held, 1)]
    for server in held:
        server.close()
    voters = {}
    for n in (1, 2, 3):
        command = (str(PROCESS), str(n), str(directory / str(n)), str(ELECTION_TICKS), *addresses)
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stdin=PIPE, stdout=PIPE)
        voters[n] = ControllerProcess(process)
        stack.push_async_callback(voters[n].close)
    for voter in voters.values():
        await voter.says("watches")
    return voters


async def leader(voters: dict[int, ControllerProcess]) -> int:
    waiting = {asyncio.ensure_future(voter.says("leads")): n for n, voter in voters.items()}
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for other in pending:
        other.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return waiting[done.pop()]


async def commits_per_s(voter: ControllerProcess, count: int, at_once: int) -> int:
    voter.tell(f"commit {count} {at_once}")
    return round(count / float((await voter.says("committed")).split()[2]))


async def one_round() -> dict[str, int]:
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        voters = await started(Path(directory), stack)
        first = voters.pop(await leader(voters))
        figures = {
            "commits_s_one_at_a_time": await commits_per_s(first, 300, 1),
            "commits_s_100_at_once": await commits_per_s(first, 5000, 100),
        }
        killed = perf_counter()
        first.kill()
        await leader(voters)
        return {**figures, "new_leader_ms": round((perf_counter() - killed) * 1000)}


async def main(rounds: int) -> None:
    print(json.dumps([await one_round() for _ in range(rounds)]))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
