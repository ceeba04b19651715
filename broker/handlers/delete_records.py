"""DeleteRecords (v0-2): moves log starts, and answers once no later leader can bring the records back.

The leader moves its log start and writes its checkpoint. Followers learn the log start from a Fetch response,
and report theirs with the next Fetch. Like Kafka's DelayedDeleteRecords, the request waits until the low
watermark (the smallest log start offset of all live replicas) reaches the requested offset of each partition.
After the timeout, the remaining partitions get REQUEST_TIMED_OUT and their current low watermark; followers
still advance later. The log start of a partition that is or was tiered is committed by the quorum, and every
later leader starts there, so the request does not wait for the followers of such a partition.
"""

from tierlog.base.types import TopicPartition
from tierlog.broker.handlers.context import Handler, Pending, Reply, RequestContext, pending
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.purgatory import DELETE_RECORDS
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.controller.commands import MoveLogStart
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK = -1
"""Special offset: delete up to the high watermark."""
NO_LOW_WATERMARK = -1


class _Deletion:
    """One partition of a request."""

    def __init__(self, deps: Dependencies, name: TopicPartition) -> None:
        self.name = name
        self.result = DeleteRecordsPartitionResult(partition_index=name.partition)
        self._deps = deps
        self._replica: Replica | None = None
        self._target = 0

    async def begin(self, offset: int) -> None:
        """Move the log start of this broker's replica."""
        replica = self._deps.find_leader(self.name.topic, self.name.partition)
        if not isinstance(replica, Replica):
            return self.fail(replica)
        if self.name.topic in self._deps.settings.topics_of_brokers:
            return self.fail(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if "delete" not in replica.config.cleanup_policy:
            return self.fail(ErrorCode.POLICY_VIOLATION)
        self._replica = replica
        self._target = replica.high_watermark if offset == HIGH_WATERMARK else offset
        if not 0 <= self._target <= replica.high_watermark:
            return self.fail(ErrorCode.OFFSET_OUT_OF_RANGE)
        if replica.log.has_been_tiered and (error := await self._commit_log_start(replica)):
            return self.fail(error)
        replica.raise_log_start(self._target)
        self.result.low_watermark = replica.log_start_offset
        return None

    async def _commit_log_start(self, replica: Replica) -> ErrorCode:
        """Commit the log start in the metadata log, because the controller queues the remote segments below
        it for deletion."""
        command = MoveLogStart(
            topic_id=replica.topic_id,
            partition=self.name.partition,
            leader_epoch=replica.leader_epoch,
            log_start_offset=self._target,
        )
        return (await self._deps.metadata.submit(command)).error

    def fail(self, error: ErrorCode) -> None:
        self.result.error_code, self.result.low_watermark = error, NO_LOW_WATERMARK

    def check_done(self) -> bool:
        """Update `result`. Returns whether nothing is left to wait for."""
        replica = self._replica
        if self.result.error_code or replica is None or replica.log.has_been_tiered:
            return True
        found = self._deps.find_leader(self.name.topic, self.name.partition)
        if found is not replica:
            self.fail(found if isinstance(found, ErrorCode) else ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return True
        self.result.low_watermark = replica.as_leader.low_watermark
        return self.result.low_watermark >= self._target

    def expire(self) -> None:
        if not self.check_done():
            self.result.error_code = ErrorCode.REQUEST_TIMED_OUT


def delete_records_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: DeleteRecordsRequest) -> Reply:
        response, deletions = DeleteRecordsResponse(), list[_Deletion]()
        for topic in request.topics:
            of_topic = []
            for partition in topic.partitions:
                deletion = _Deletion(deps, TopicPartition(topic.name, partition.partition_index))
                await deletion.begin(partition.offset)
                of_topic.append(deletion)
            results = [deletion.result for deletion in of_topic]
            response.topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
            deletions += of_topic
        # A crash must not bring back records whose deletion was acknowledged (guarantee 6 in
        # docs/explanation/guarantees.md).
        unwritten = await deps.replicas.checkpoints.write_for({deletion.name for deletion in deletions})
        for deletion in deletions:
            if deletion.result.error_code == ErrorCode.NONE and deletion.name in unwritten:
                deletion.fail(ErrorCode.KAFKA_STORAGE_ERROR)
        return await _when_deleted(deps, deletions, response, request.timeout_ms)

    return handle


async def _when_deleted(
    deps: Dependencies, deletions: list[_Deletion], response: DeleteRecordsResponse, timeout_ms: int
) -> Reply:
    """Wait until every live replica has deleted the records, then return the response."""
    waiting = [deletion for deletion in deletions if not deletion.check_done()]
    if not waiting:
        return response

    def attempt(_: object) -> DeleteRecordsResponse | None:
        # check from the end and stop at the first partition that waits: a request may have thousands
        while waiting and waiting[-1].check_done():
            waiting.pop()
        return None if waiting else response

    def expire() -> DeleteRecordsResponse:
        for deletion in waiting:
            deletion.expire()
        return response

    keys = {deletion.name: None for deletion in waiting}
    reply = deps.purgatory.wait(keys, timeout_ms, attempt, expire, DELETE_RECORDS)
    return await reply if isinstance(reply, Pending) else reply
