"""Runs `tierlog …` as a process of its own, without a broker."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import warm_start


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tierlog.cli.main", *map(str, words)]
    ended = warm_start.run(command, os.environ)
    return subprocess.CompletedProcess(
        command, ended.returncode, ended.stdout.decode(), ended.stderr.decode()
    )


def json_output(*words: str | Path, code: int = 0) -> list[Any]:
    """The JSON documents that the command prints."""
    ended = run(*words, "--json")
    assert ended.returncode == code, ended.stdout + ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]
