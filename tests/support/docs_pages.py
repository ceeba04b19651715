"""Runs the commands on the documentation pages against a broker.

A ```console block holds commands after `$ ` and, below them, their output, which is not compared because it
has offsets and times. ```python blocks are programs. ```console kcat and ```console java need those clients.
`tierlog dev`, `tierlog server` and `tierlog rest` are not run: the given broker and gateway take their place,
and their addresses replace the default ones in the commands.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tierlog.testing import TierlogBroker

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(console|python)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BROKER_COMMANDS = ("tierlog dev", "tierlog server", "tierlog rest")


@dataclass(frozen=True)
class Block:
    language: str
    client: str
    text: str

    def programs(self) -> list[list[str]]:
        """The programs to run, in order."""
        if self.language == "python":
            return [[sys.executable, "-c", self.text]]
        commands = [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]
        return [["bash", "-ec", command] for command in commands if not command.startswith(BROKER_COMMANDS)]


def blocks(page: str) -> list[Block]:
    found = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    return [Block(language, client, text) for language, client, text in found]


def run_page(
    page: str, broker: TierlogBroker, client: str = "", *, tools: Path | None = None, rest_url: str = ""
) -> int:
    """Run the blocks that need no client or the given one; return how many of them need it.

    `tools` is a directory of commands that is put first in the PATH, `rest_url` a REST gateway.
    """
    environment = {**os.environ, "TIERLOG_BOOTSTRAP": broker.bootstrap, "TIERLOG_ADMIN": broker.admin_url}
    path = [*([tools] if tools else []), Path(sys.executable).parent, os.environ["PATH"]]
    environment["PATH"] = os.pathsep.join(map(str, path))
    ran = 0
    for block in blocks(page):
        for program in block.programs() if block.client in ("", client) else []:
            *words, text = program
            addresses = {
                "127.0.0.1:9092": broker.bootstrap,
                "http://127.0.0.1:9644": broker.admin_url,
                "http://127.0.0.1:8082": rest_url,
            }
            for default, address in addresses.items():
                text = text.replace(default, address)
            result = subprocess.run(
                [*words, text], env=environment, capture_output=True, text=True, timeout=60, check=False
            )
            assert result.returncode == 0, f"{text}\n{result.stdout}\n{result.stderr}"
            ran += block.client == client
    return ran
