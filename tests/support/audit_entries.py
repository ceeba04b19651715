"""Reads the audit log of a broker."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class AuditEntries:
    """Entries of a node, by the files of its directory."""

    def __init__(self, directory: Path, node_id: int = 1) -> None:
        self.directory = directory
        self._name = f"audit-{node_id}"

    def actions(self, api: str | None = None) -> list[dict[str, Any]]:
        """Entries of the event `action`, the oldest first."""
        return [entry for entry in self._read(f"{self._name}.jsonl") if api in (None, entry["api"])]

    def denials(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self._read(f"{self._name}-denied.jsonl") if entry["event"] == event]

    def text(self) -> str:
        """All that the directory has."""
        return "".join(path.read_text() for path in sorted(self.directory.glob("*")))

    def _read(self, name: str) -> Iterator[dict[str, Any]]:
        path = self.directory / name
        olds = sorted(self.directory.glob(f"{name}.*"), key=lambda old: -int(old.suffix[1:]))
        for file in (*olds, *([path] if path.exists() else [])):
            for line in file.read_text().splitlines():
                yield json.loads(line)
