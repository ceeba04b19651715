"""Runs `tierlog …` as a process of its own, without a broker."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tierlog.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def json_output(*words: str | Path, code: int = 0) -> list[Any]:
    """The JSON documents that the command prints."""
    ended = run(*words, "--json")
    assert ended.returncode == code, ended.stdout + ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]
