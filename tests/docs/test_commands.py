"""Every command in the docs is run: a page's blocks in order, against a broker of its own.

A block ```console holds commands after `$ ` and, below them, what they print (not compared: it has offsets
and times). ```python blocks are programs. ```console kcat and ```console java need those clients, and run
with the other client tests. `tierlog dev` stands for the fixture's broker; its addresses are put in place.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tierlog.testing import TierlogBroker

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(console|python)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if re.search(r"^```console", page.read_text(encoding="utf-8"), re.MULTILINE)
)
BROKER_COMMANDS = ("tierlog dev", "tierlog server")


@dataclass(frozen=True)
class Block:
    language: str
    client: str
    text: str

    def programs(self) -> list[list[str]]:
        """What to execute, one after the other."""
        if self.language == "python":
            return [[sys.executable, "-c", self.text]]
        commands = [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]
        return [["bash", "-ec", command] for command in commands if not command.startswith(BROKER_COMMANDS)]


def blocks(page: str) -> list[Block]:
    found = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    return [Block(language, client, text) for language, client, text in found]


def run_page(page: str, broker: TierlogBroker, clients: set[str]) -> int:
    """Runs the blocks that need no client but the given ones; returns how many programs ran."""
    environment = {**os.environ, "TIERLOG_BOOTSTRAP": broker.bootstrap, "TIERLOG_ADMIN": broker.admin_url}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = 0
    for block in blocks(page):
        for program in block.programs() if not block.client or block.client in clients else []:
            *words, text = program
            text = text.replace("127.0.0.1:9092", broker.bootstrap).replace(
                "http://127.0.0.1:9644", broker.admin_url
            )
            ended = subprocess.run(
                [*words, text], env=environment, capture_output=True, text=True, timeout=60, check=False
            )
            assert ended.returncode == 0, f"{text}\n{ended.stdout}\n{ended.stderr}"
            ran += 1
    return ran


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.slow
def test_the_commands_of_a_page_work(page: str, tierlog_broker: TierlogBroker) -> None:
    assert run_page(page, tierlog_broker, set()) > 0


@pytest.mark.clients
def test_the_commands_for_kcat_work(tierlog_broker: TierlogBroker) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed (Debian: apt-get install kcat)")
    assert run_page("docs/tutorial/quickstart.md", tierlog_broker, {"kcat"}) > 0


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []
