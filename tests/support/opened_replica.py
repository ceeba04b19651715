"""A replica for tests, opened in a directory as `ReplicaLoader` opens it, but without a replica manager."""

import random
import uuid
from pathlib import Path
from typing import Any

from tierlog.base.files import Files, OsFiles
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.log import PartitionLog
from tierlog.config.topic import TopicConfig


def opened_replica(
    name: TopicPartition,
    topic_id: uuid.UUID,
    broker_id: int,
    directory: Path,
    config: TopicConfig,
    files: Files,
    now_ms: int,
    *,
    clean: bool,
    rng: random.Random,
    high_watermark: int = 0,
    **log_options: Any,
) -> Replica:
    """Open or create the log and its replica. `log_options`: further arguments of `PartitionLog.open`."""
    log = PartitionLog.open(
        directory, config, files, now_ms, clean=clean, rng=rng, high_watermark=high_watermark, **log_options
    )
    replica = Replica(name, topic_id, broker_id, log, high_watermark)
    if replica.wants_flush():
        replica.flush()
    return replica


def led_replica(directory: Path, now_ms: int, config: TopicConfig | None = None) -> Replica:
    """The only replica of t-0, which leads, in a folder of `directory`."""
    replica = opened_replica(
        TopicPartition("t", 0),
        uuid.UUID(int=1),
        1,
        directory / "t-0",
        config or TopicConfig(),
        OsFiles(),
        now_ms,
        clean=False,
        rng=random.Random(1),
    )
    replica.become_leader(0, 0, [1])
    return replica
