"""A metadata node whose storage was opened at once, without its thread."""

from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from tierlog.base.clock import Clock
from tierlog.base.files import Files
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import Rng, random_uuid
from tierlog.metadata.quorum.node import MetadataNode
from tierlog.metadata.quorum.storage import MetadataStorage, StorageThread, ThreadedStorage


def opened_metadata(
    node_id: int,
    voters: Mapping[int, str],
    directory: Path,
    files: Files,
    clock: Clock,
    rng: Rng,
    tasks: TaskGroup,
    cluster_id: str,
    *,
    worker: Executor | None = None,
    **options: Any,
) -> MetadataNode:
    """`worker`: single-threaded executor for the files. `options`: as for MetadataNode."""
    storage = MetadataStorage(
        files, directory, cluster_id=cluster_id, node_id=node_id, new_directory_id=random_uuid(rng)
    )
    threaded = ThreadedStorage(storage, StorageThread(clock, worker, f"metadata-{node_id}"))
    return MetadataNode(node_id, voters, threaded, storage.open(), clock, rng, tasks, cluster_id, **options)
