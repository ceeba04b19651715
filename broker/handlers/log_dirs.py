"""DescribeLogDirs (v1-5): bytes per partition on local disk, and room on the disk (KIP-827)."""

import os
from collections import defaultdict

from tierlog.broker.handlers.context import Handler, Reply, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def describe_log_dirs_handler(deps: Dependencies) -> Handler:
    def handle(context: RequestContext, request: DescribeLogDirsRequest) -> Reply:
        wanted = None
        if request.topics is not None:
            wanted = {(topic.topic, partition) for topic in request.topics for partition in topic.partitions}
        by_topic: dict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
        for replica in sorted(deps.replicas, key=lambda replica: replica.name):
            if wanted is None or replica.name in wanted:
                by_topic[replica.name.topic].append(
                    DescribeLogDirsPartition(
                        partition_index=replica.name.partition, partition_size=replica.log.size_bytes
                    )
                )
        directory = deps.settings.data_directory
        disk = os.statvfs(directory)
        return DescribeLogDirsResponse(
            results=[
                DescribeLogDirsResult(
                    log_dir=str(directory.absolute()),
                    topics=[
                        DescribeLogDirsTopic(name=topic, partitions=partitions)
                        for topic, partitions in by_topic.items()
                    ],
                    total_bytes=disk.f_blocks * disk.f_frsize,
                    usable_bytes=disk.f_bavail * disk.f_frsize,
                )
            ]
        )

    return handle
