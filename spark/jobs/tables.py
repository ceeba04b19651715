"""Tables that `backfill` writes: plain Parquet here, Iceberg and Delta in modules of their own.

A table is the only place that knows where the last run ended: the offsets are committed together with the
files. A run that dies before its commit leaves files that no reader of the table sees.
"""

import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol
from uuid import UUID

from tierlog.base.types import TopicIdPartition
from tierlog.spark.jobs.arguments import JobFailed
from tierlog.spark.jobs.export import WrittenFile
from tierlog.spark.jobs.file_stores import FileStore
from tierlog.spark.jobs.selection import Ends

STATE = "_tierlog"
COMMITS, STAGED = f"{STATE}/commits", f"{STATE}/staged"
BYTES = "binary"
_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Destination:
    """The folder into which executors write the files of the next commit; see `ExportTask`.
    `has_far_dates`: its readers know timestamps after the year 9999."""

    store: FileStore
    folder: str
    in_folders: bool
    has_far_dates: bool = True


class Table(Protocol):
    def ends(self, partitions: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, int]:
        """The ends of the last commit, for those of the partitions that have been exported."""

    def destination(self) -> Destination:
        """The destination of the next commit."""

    def commit(self, files: Sequence[WrittenFile], ends: Ends) -> str:
        """Add the files and set the ends of their partitions, both or neither. Returns the name of the
        commit. Raises JobFailed if another run has exported one of these partitions since `ends` was read."""


def encode_ends(ends: Ends) -> str:
    """JSON: {"<topic id>": {"<partition>": offset}}."""
    found: dict[str, dict[str, int]] = {}
    for where, end in sorted(ends.items(), key=lambda pair: (str(pair[0].topic_id), pair[0].partition)):
        found.setdefault(str(where.topic_id), {})[str(where.partition)] = end
    return json.dumps(found)


def decode_ends(text: str) -> dict[TopicIdPartition, int]:
    return {
        TopicIdPartition(UUID(topic_id), int(partition)): end
        for topic_id, partitions in json.loads(text).items()
        for partition, end in partitions.items()
    }


def check_values(where: str, before: str, now: str) -> None:
    """Raises JobFailed if decoded values would get another type than those of earlier commits."""
    if before != now:
        raise JobFailed(
            f"{where} has values of the type {before}, not {now}. Give the --value-option of the first run "
            "(value.schema.id names a version of a schema), or another table"
        )


def changed_meanwhile(where: str) -> JobFailed:
    return JobFailed(
        f"{where}: another run has committed the same partitions since this one was planned. None of "
        "this run's files were added; run it again"
    )


class ParquetTable:
    """A folder of Parquet files. `_tierlog/commits/N.json` lists the files and the ends of commit N.

    Executors write below `_tierlog/staged`, which Spark, pyarrow and pandas ignore, because its name begins
    with an underscore. The commit is the creation of N.json. After it the files are moved to their places; a
    run that dies while it does so is completed by the next one.
    """

    def __init__(self, store: FileStore, settings: dict[str, Any]) -> None:
        """`settings`: columns, time partition, and the type of decoded values. Raises JobFailed if earlier
        commits had others."""
        self._store = store
        self._settings = settings
        self._number, self._commit = self._newest()
        if self._commit:
            self._check(self._commit["settings"])
            self._publish(self._commit)
        elif others := sorted(set(store.children()) - {STATE}):
            problem = "is a Delta table" if "_delta_log" in others else f"already has {others[0]}"
            raise JobFailed(f"{store.url} {problem}, and no export: give --to a new folder")
        self._staged = self._next_folder()

    def ends(self, partitions: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, int]:
        ends = self._ends()
        return {where: ends[where] for where in partitions if where in ends}

    def destination(self) -> Destination:
        return Destination(self._store, self._staged, in_folders=True)

    def commit(self, files: Sequence[WrittenFile], ends: Ends) -> str:
        number = self._number + 1
        commit = {
            "settings": self._settings,
            "ends": json.loads(encode_ends({**self._ends(), **ends})),
            "staged": self._staged,
            "files": [asdict(file) for file in files],
        }
        name = f"{COMMITS}/{number:0{_DIGITS}}.json"
        try:
            self._store.create_once(name, json.dumps(commit).encode())
        except FileExistsError:
            raise changed_meanwhile(self._store.url) from None
        self._number, self._commit = number, commit
        self._publish(commit)
        self._staged = self._next_folder()
        return name

    def _check(self, before: dict[str, Any]) -> None:
        """Raises JobFailed if earlier commits had other settings."""
        check_values(self._store.url, *(one.get("value", BYTES) for one in (before, self._settings)))
        for name in ("columns", "partition_by"):
            now = self._settings[name]
            if before[name] != now:
                was, given = (",".join(one) if name == "columns" else one for one in (before[name], now))
                raise JobFailed(
                    f"{self._store.url} was exported with --{name.replace('_', '-')} {was}, not {given}. "
                    "Give the same arguments, or another folder"
                )

    def _publish(self, commit: dict[str, Any]) -> None:
        """Move the files of a commit to their places, and delete folders of runs that can no longer
        commit."""
        staged: str = commit["staged"]
        left = set(self._store.names(staged))
        for file in commit["files"]:
            if f"{staged}/{file['path']}" in left:
                self._store.move(f"{staged}/{file['path']}", file["path"])
        self._store.sync_folders(file["path"] for file in commit["files"])
        folders = {name.removeprefix(f"{STAGED}/").partition("/")[0] for name in self._store.names(STAGED)}
        for folder in folders | {staged.rpartition("/")[2]}:
            if int(folder.partition("-")[0]) <= self._number:
                self._store.delete(f"{STAGED}/{folder}")

    def _next_folder(self) -> str:
        """Its name begins with the number of the commit that alone can publish it."""
        return f"{STAGED}/{self._number + 1}-{secrets.token_hex(8)}"

    def _ends(self) -> dict[TopicIdPartition, int]:
        return decode_ends(json.dumps(self._commit["ends"])) if self._commit else {}

    def _newest(self) -> tuple[int, dict[str, Any]]:
        commits = sorted(name for name in self._store.names(COMMITS) if name.endswith(".json"))
        if not commits:
            return 0, {}
        number = int(commits[-1].rpartition("/")[2].removesuffix(".json"))
        commit: dict[str, Any] = json.loads(self._store.read(commits[-1]))
        return number, commit
