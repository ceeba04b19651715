"""Runs `tierlog …` inside this process, which is fast; returns its exit status and output."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tierlog.cli import client_config, main
from tierlog.cli.command_tree import command_tree

TREE = command_tree(main.app)
"""Built once: the parameters of all commands take 50 ms, and a bad invocation of one takes 2 ms."""


def commands(command: Any = None, path: str = "") -> dict[str, Any]:
    """Command line -> command, for all commands of `tierlog` that are not groups."""
    command = TREE if command is None else command
    children = getattr(command, "commands", None)
    if not children:
        return {path.strip(): command}
    found: dict[str, Any] = {}
    for name, child in children.items():
        found |= commands(child, f"{path} {name}")
    return found


class Ended(NamedTuple):
    code: int
    stdout: str
    stderr: str


def call(*words: str, stdin: bytes = b"") -> Ended:
    """Exceptions other than SystemExit pass through: in a process of its own they would be tracebacks."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "command_tree", lambda _: TREE)
        patch.setattr(sys, "argv", ["tierlog", *words])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        try:
            main.main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            client_config.remember(None)  # or a client of the same process would use the command's login
    return Ended(code, _text(out), _text(err))


def succeed(*words: str, stdin: bytes = b"") -> Ended:
    """As `call`, for a command that must succeed."""
    ended = call(*words, stdin=stdin)
    assert ended.code == 0, ended
    return ended


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """As `cli_process.run`, without the second that a process takes to start."""
    ended = call(*map(str, words))
    return subprocess.CompletedProcess(words, ended.code, ended.stdout, ended.stderr)


def json_output(*words: str | Path, code: int = 0) -> list[Any]:
    """The JSON documents that the command prints."""
    ended = run(*words, "--json")
    assert ended.returncode == code, ended.stdout + ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def _text(stream: io.TextIOWrapper) -> str:
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
