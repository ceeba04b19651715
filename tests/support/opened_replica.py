"""A replica for tests, opened in a directory as `ReplicaLoader` opens it, but without a replica manager."""

import random
import uuid
from pathlib import Path
from typing import Any

from tierlog.base.files import Files
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
