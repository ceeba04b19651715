"""Broker processes that end with SIGKILL at a named step of tiering.

Each command to the quorum, each request to the object store, and each file that gets another name or is
deleted, is a step: `before` it, and `after` its result has arrived. `KillSwitch.python` is a program that
starts a broker as Python does, and in which the steps are watched. After `arm`, the first process at a step
with this name kills itself.
"""

import os
import re
import runpy
import signal
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

PROGRAM = """#!{python}
import sys
sys.path.append({support!r})
import killed_process
killed_process.run({directory!r})
"""
SMALL_TREE = "KILLED_PROCESS_SMALL_TREE"
"""Variable of the environment, if set: a partition with a dozen segments has pages, and one with 30 a tree of
them. Without it that takes hundreds, and thousands."""


def both(step: str) -> tuple[str, str]:
    return f"before {step}", f"after {step}"


class KillSwitch:
    """Its directory may be shared by several processes, of which one is killed."""

    def __init__(self, directory: Path) -> None:
        self._armed = directory / "armed"
        self._steps = directory / "steps"
        self.python = directory / "python"
        """After `write_program`: what to use as Python for a broker."""

    def write_program(self) -> None:
        directory, support = self.python.parent, str(Path(__file__).parent)
        directory.mkdir(parents=True, exist_ok=True)
        self.python.write_text(
            PROGRAM.format(python=sys.executable, support=support, directory=str(directory))
        )
        self.python.chmod(self.python.stat().st_mode | stat.S_IXUSR)

    def arm(self, step: str) -> None:
        """`step`: a regular expression that matches the end of a name, such as `before FinishCopy`."""
        self._steps.unlink(missing_ok=True)
        written = self._armed.with_suffix(".new")
        written.write_text(step)
        written.replace(self._armed)

    def disarm(self) -> bool:
        """Returns whether a process was killed."""
        try:
            self._armed.unlink()
        except FileNotFoundError:
            return True
        return False

    @property
    def has_killed(self) -> bool:
        return not self._armed.exists()

    def steps(self) -> list[str]:
        """The steps since `arm`, to report one that never comes."""
        return self._steps.read_text().splitlines() if self._steps.exists() else []

    def reached(self, step: str) -> None:
        """Called in the broker's process."""
        try:
            pattern = self._armed.read_text()
        except FileNotFoundError:
            return
        if re.search(f"{pattern}$", step):
            with suppress(FileNotFoundError):  # another process was first
                self._armed.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        with open(self._steps, "a") as steps:
            steps.write(f"{step}\n")


def run(directory: str) -> None:
    """Run `python -m MODULE …` with the program's own arguments."""
    switch = KillSwitch(Path(directory))
    _watch_quorum(switch.reached)
    _watch_store(switch.reached)
    _watch_files(switch.reached)
    if SMALL_TREE in os.environ:
        _limit_tree()
    _, option, module, *arguments = sys.argv
    assert option == "-m", sys.argv
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _limit_tree() -> None:
    from tierlog.tiering import page_tree

    limits = page_tree.TreeLimits(entries=6, references=2, page_nodes=4)
    page_tree.limits_for = lambda *_: limits


def _watch_quorum(reached: Callable[[str], None]) -> None:
    from tierlog.metadata.quorum.client import MetadataClient

    submit = MetadataClient.submit

    async def watched(self: MetadataClient, command: Any, *arguments: Any, **options: Any) -> Any:
        replaces = " replaces" if getattr(command, "replaces", False) else ""
        step = f"{type(command).__name__}{replaces}"
        reached(f"before {step}")
        reply = await submit(self, command, *arguments, **options)
        reached(f"after {step}")
        return reply

    MetadataClient.submit = watched  # type: ignore[method-assign]


def _watch_store(reached: Callable[[str], None]) -> None:
    from tierlog.tiering.http_connections import HttpConnections, Response, Transfer

    request = HttpConnections.request

    def watched(
        self: HttpConnections,
        transfer: Transfer,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | memoryview,
    ) -> Response:
        deleted = " ".join(re.findall(r"<Key>(.*?)</Key>", bytes(body).decode())) if "?delete" in url else ""
        step = f"{method} {url} {deleted}".strip()
        reached(f"before {step}")
        response = request(self, transfer, method, url, headers, body)
        reached(f"after {step}")
        return response

    HttpConnections.request = watched  # type: ignore[method-assign]


def _watch_files(reached: Callable[[str], None]) -> None:
    from tierlog.base.files import OsFiles

    rename, unlink = OsFiles.rename, OsFiles.unlink

    def watched_rename(source: Path, target: Path) -> None:
        reached(f"before rename {target}")
        rename(source, target)
        reached(f"after rename {target}")

    def watched_unlink(self: OsFiles, path: Path, *, missing_ok: bool = False) -> None:
        reached(f"before unlink {path}")
        unlink(self, path, missing_ok=missing_ok)
        reached(f"after unlink {path}")

    OsFiles.rename = staticmethod(watched_rename)  # type: ignore[method-assign, assignment]
    OsFiles.unlink = watched_unlink  # type: ignore[method-assign]
