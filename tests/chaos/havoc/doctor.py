"""`tierlog doctor` during a fault: which of its findings names the fault, and after how many seconds."""

import json
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from havoc.nodes import Cluster, without_settings

WITHIN_S = 30.0
UNREACHABLE = 3
NO_NODE = "no node responds"
"""The error of doctor, with exit code UNREACHABLE, in place of a finding."""

DEAD = ("node",)
RULES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("kill-leader", "kill-follower", "kill-controller", "kill-coordinator", "kill-both"), DEAD
    ),
    **dict.fromkeys(("stop-leader", "stop-follower", "stop-controller"), DEAD),
    **dict.fromkeys(("isolate-leader", "part-leader", "isolate-controller", "unheard-leader"), DEAD),
    **dict.fromkeys(("one-way-out", "one-way-in", "wipe", "wipe-controller", "restored-directory"), DEAD),
    **dict.fromkeys(("kill-all", "stop-all"), (NO_NODE,)),
    **dict.fromkeys(("kill-voters", "isolate-majority", "isolate-voters", "change-voters"), ("quorum",)),
    **dict.fromkeys(("clock-forward", "clock-back", "wrong-clocks"), ("clock",)),
    "disk-full": ("disk-full", "disk-low", "node"),
    "disk-full-controller": ("metadata-disk-low", "node"),
    **dict.fromkeys(("fsync-error", "fsync-error-controller"), ("disk-failed", "node")),
    "fsync-hang-controller": DEAD,
    **dict.fromkeys(("store-kill", "store-stop", "store-cut"), ("object-store",)),
    "store-and-leader": ("object-store", "node"),
    **dict.fromkeys(("upgrade", "crash-upgrade"), ("mixed-builds",)),
}
"""Fault -> rules of which one names it."""

UNNAMED = {
    "loss": "packets that are sent again harm nothing that lasts",
    "twin": "the second process is refused, and the cluster is whole: the process's own log says why",
    "store-slow": "calls succeed, only later: a rate or a latency shows it, and alerts have these",
}
"""Faults that doctor need not name, and why."""


@dataclass(frozen=True, slots=True)
class Found:
    """`rule`: of the finding that named the fault; None: none did. `seconds`: from the fault on, with the
    start of the command. `is_needed`: whether it has to be named."""

    rule: str | None
    what: str
    seconds: float | None
    is_needed: bool

    @property
    def is_late(self) -> bool:
        return self.is_needed and (self.seconds is None or self.seconds > WITHIN_S)

    def __str__(self) -> str:
        return f"{self.rule} after {self.seconds:.1f} s: {self.what}" if self.seconds else "nothing"


HEAD = "| fault | found | seconds |\n| --- | --- | ---: |\n"
_ROW = re.compile(r"^\| `([\w-]+)` \| (.*) \| (.*) \|$", re.M)


def note(table: Path, fault: str, found: Found) -> None:
    """Enter a fault into a table of Markdown, which several runs may write to one after the other. It keeps
    the longest time of each fault."""
    rows = {name: (what, seconds) for name, what, seconds in _ROW.findall(_text(table))}
    if found.seconds is not None:
        row = f"`{found.rule}`", f"{found.seconds:.1f}"
    else:
        row = ("not named" if found.is_needed else UNNAMED[fault]), "-"
    rows[fault] = max(row, rows.get(fault, row), key=lambda one: _seconds(one[1]))
    lines = (f"| `{name}` | {what} | {seconds} |\n" for name, (what, seconds) in sorted(rows.items()))
    table.write_text(HEAD + "".join(lines), encoding="utf-8")


def _text(table: Path) -> str:
    return table.read_text(encoding="utf-8") if table.exists() else ""


def _seconds(cell: str) -> float:
    return math.inf if cell == "-" else float(cell)


def find(cluster: Cluster, fault: str) -> Found:
    """Ask until the fault is named, or its time for that is over."""
    rules, began = RULES.get(fault, ()), time.monotonic()
    while rules and time.monotonic() - began < WITHIN_S:
        for rule, what in _findings(cluster):
            if rule in rules:
                return Found(rule, what, round(time.monotonic() - began, 1), is_needed=True)
    return Found(None, "", None, is_needed=fault not in UNNAMED)


def _findings(cluster: Cluster) -> list[tuple[str, str]]:
    """Rule and text of each finding."""
    urls = ",".join(f"http://{node.place.admin}" for node in cluster.nodes.values())
    command = [sys.executable, "-m", "tierlog.cli.main", "doctor", "--json", "--admin", urls]
    environment = without_settings(os.environ)
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode == UNREACHABLE:
        return [(NO_NODE, ended.stderr.partition("\n")[0])]
    try:
        return [(one["rule"], one["what"]) for one in json.loads(ended.stdout)["findings"]]
    except ValueError:
        return []
