"""Remote log segments: copies to the object store, the manifest and the delete queue (KIP-405).

Invariants, whatever brokers do:

- The entries of a partition's manifest are contiguous. Only the leader of the current epoch adds or replaces
  one (replacing: `remote_splices`).
- Every object is announced before it is put, so an unfinished copy is found and deleted.
- No object is deleted before a committed record marks it in the delete queue. No marked object enters the
  manifest.
- The log start offset never decreases.

All commands may be repeated: a repetition of what already happened is acknowledged. A function raises Refusal
to refuse a command.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from uuid import UUID

from tierlog.base.safeguards import safeguard
from tierlog.config.topic import TOPIC_SETTINGS
from tierlog.metadata import records as r
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decision import Decision, Refusal, check_format, done
from tierlog.metadata.delete_queue import ALONE, WITH_SEGMENTS, Deletion, QueuedDelete
from tierlog.metadata.image import ClusterImage, RemotePartition, StartedCopy
from tierlog.metadata.records import PartitionRecord
from tierlog.protocol.errors import ErrorCode

_ENABLE = TOPIC_SETTINGS["remote.storage.enable"]
MAX_ENTRIES = 512  # per partition in memory; the oldest must be spilled to pages first
MAX_STARTED = 16  # concurrent copies per partition
MAX_LOADING = 1024  # copies that bulk loads of a partition have started, failed attempts among them
SPILL_TIMEOUT_MS = 600_000  # time to finish a page; after that, the grace period of its deletion begins
MAX_DELETES = 500  # marked by one record, which contains their ids


def waiting_since_ms(deletion: Deletion) -> int:
    """When the deletion was queued, in the quorum's time. The `queued_ms` of an unfinished page is later by
    SPILL_TIMEOUT_MS, because its grace period begins only then.
    """
    if isinstance(deletion, QueuedDelete) and deletion.is_unfinished_page:
        return deletion.queued_ms - SPILL_TIMEOUT_MS
    return deletion.queued_ms


def start_copy(image: ClusterImage, command: c.StartCopy, now_ms: int) -> Decision[c.Acknowledged]:
    partition = partition_of(image, command.topic_id, command.partition)
    check_leader(partition, command.broker_id, command.leader_epoch)
    if not is_tiered(image, command.topic_id):
        raise Refusal(ErrorCode.INVALID_REQUEST, "the topic is not tiered: nothing of it is copied")
    remote = image.remote_partition(command.topic_id, command.partition)
    copy = _copy_started(command, now_ms)
    known = _find(remote.started, command.uuid)
    if known is not None and _identity(known) == _identity(copy):
        return done()
    check_fresh_uuid(image, remote, command.uuid)
    stale = [other for other in remote.started if _supersedes(copy, other)]
    kept = [other for other in remote.started if other not in stale]
    most = MAX_LOADING if command.loads else MAX_STARTED
    if sum(other.loads == command.loads for other in kept) >= most:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{most} copies are in progress")
    if command.loads:
        check_format(image, 2)
        _check_load(remote, copy)
    elif command.replaces:
        check_format(image, 2)
        _check_replacement(remote, copy)
    else:
        _check_start(remote, [other for other in kept if not (other.replaces or other.loads)], copy)
    return done(*(_copy_abandoned(command, other.uuid, now_ms) for other in stale), copy)


def finish_copy(image: ClusterImage, command: c.FinishCopy) -> Decision[c.Acknowledged]:
    segment = command.segment
    partition = partition_of(image, command.topic_id, command.partition)
    remote = image.remote_partition(command.topic_id, command.partition)
    if segment in remote.entries:
        return done()
    check_leader(partition, command.broker_id, segment.leader_epoch)
    started = _find(remote.started, segment.uuid)
    if started is None:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"copy {segment.uuid} was not started, or was abandoned")
    if started.replaces or started.loads:
        command_name = "LoadSegments" if started.loads else "ReplaceSegments"
        raise Refusal(ErrorCode.INVALID_REQUEST, f"copy {segment.uuid} is for {command_name}")
    if not segment.fits_format_1:
        check_format(image, 2)
    if _range(started) != _range(segment) or started.leader_epoch != segment.leader_epoch:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"copy {segment.uuid} was started for other offsets")
    if segment.last_offset < remote.log_start_offset:
        message = f"the log starts at {remote.log_start_offset}; the copy ends at {segment.last_offset}"
        raise Refusal(ErrorCode.OFFSET_OUT_OF_RANGE, message)
    _check_base(remote, segment.base_offset)
    return done(r.CopyFinished(topic_id=command.topic_id, partition=command.partition, segment=segment))


def abandon_copy(image: ClusterImage, command: c.AbandonCopy, now_ms: int) -> Decision[c.Acknowledged]:
    partition = partition_of(image, command.topic_id, command.partition)
    remote = image.remote_partition(command.topic_id, command.partition)
    if any(entry.uuid == command.uuid for entry in remote.entries):
        raise Refusal(ErrorCode.INVALID_REQUEST, f"copy {command.uuid} has finished")
    copy = _find(remote.started, command.uuid)
    if copy is None:
        return done()
    if command.leader_epoch not in (partition.leader_epoch, copy.leader_epoch):
        check_epoch(partition, command.leader_epoch)
    return done(_copy_abandoned(command, copy.uuid, now_ms))


def move_log_start(image: ClusterImage, command: c.MoveLogStart, now_ms: int) -> Decision[c.LogStartReply]:
    partition = partition_of(image, command.topic_id, command.partition)
    check_epoch(partition, command.leader_epoch)
    before = image.remote_partition(command.topic_id, command.partition).log_start_offset
    if command.log_start_offset <= before:
        return Decision((), c.LogStartReply(log_start_offset=before))
    record = r.LogStartMoved(
        topic_id=command.topic_id,
        partition=command.partition,
        log_start_offset=command.log_start_offset,
        at_ms=now_ms,
    )
    return Decision((record,), c.LogStartReply(log_start_offset=command.log_start_offset))


def drop_remote_log(image: ClusterImage, command: c.DropRemoteLog, now_ms: int) -> Decision[c.LogStartReply]:
    """Refused while the topic is tiered: tiering may have been switched on again since the leader looked."""
    partition = partition_of(image, command.topic_id, command.partition)
    check_epoch(partition, command.leader_epoch)
    if is_tiered(image, command.topic_id):
        raise Refusal(ErrorCode.INVALID_REQUEST, "the topic is tiered: its remote data is not dropped")
    remote = image.remote_partition(command.topic_id, command.partition)
    start = max(remote.log_start_offset, command.log_start_offset)
    reply = c.LogStartReply(log_start_offset=start)
    if remote.first_offset is None and not remote.started and start == remote.log_start_offset:
        return Decision((), reply)
    record = r.RemoteLogDropped(
        topic_id=command.topic_id, partition=command.partition, log_start_offset=start, at_ms=now_ms
    )
    return Decision((record,), reply)


def remove_diverged(image: ClusterImage, command: c.RemoveDiverged, now_ms: int) -> Decision[c.Acknowledged]:
    """Only the current leader removes entries, and only those that earlier leaders uploaded."""
    partition = partition_of(image, command.topic_id, command.partition)
    check_leader(partition, command.broker_id, command.leader_epoch)
    remote = image.remote_partition(command.topic_id, command.partition)
    diverged = [entry for entry in remote.entries if entry.end_offset > command.from_offset]
    if not diverged:
        return done()
    if diverged[0].base_offset != command.from_offset:
        message = f"no manifest entry begins at {command.from_offset}"
        raise Refusal(ErrorCode.INVALID_REQUEST, message)
    if any(entry.leader_epoch >= command.leader_epoch for entry in diverged):
        message = f"the leader of epoch {command.leader_epoch} has copied offsets itself"
        raise Refusal(ErrorCode.INVALID_REQUEST, message)
    return done(
        r.RemoteLogDiverged(
            topic_id=command.topic_id,
            partition=command.partition,
            from_offset=command.from_offset,
            at_ms=now_ms,
        )
    )


def adopt_manifest(image: ClusterImage, command: c.AdoptManifest, now_ms: int) -> Decision[c.Acknowledged]:
    partition = partition_of(image, command.topic_id, command.partition)
    check_leader(partition, command.broker_id, command.leader_epoch)
    if (command.topic_id, command.partition) not in image.unread_manifests:
        return done()
    nodes: tuple[r.ManifestNode, ...] = (*command.pages, *command.entries)
    before = image.remote_partition(command.topic_id, command.partition).log_start_offset
    is_ordered = all(one.end_offset == two.base_offset for one, two in pairwise(nodes))
    if not is_ordered or command.log_start_offset < before or len(command.entries) > MAX_ENTRIES:
        raise Refusal(ErrorCode.INVALID_REQUEST, "the manifest in the bucket cannot follow the recovered one")
    deleted = [node for node in nodes if image.is_being_deleted(node.uuid)]
    if deleted:
        message = f"the deletion of {deleted[0].uuid}, which the manifest in the bucket lists, has begun"
        raise Refusal(ErrorCode.INVALID_REQUEST, message)
    if any(page.level for page in command.pages) or not all(one.fits_format_1 for one in command.entries):
        check_format(image, 2)
    return done(
        r.ManifestAdopted(
            topic_id=command.topic_id,
            partition=command.partition,
            log_start_offset=command.log_start_offset,
            pages=command.pages,
            entries=command.entries,
            at_ms=now_ms,
        )
    )


def start_deletes(
    image: ClusterImage, command: c.StartRemoteDeletes, now_ms: int
) -> Decision[c.Acknowledged]:
    latest_ms = _queued_until_ms(now_ms, command.grace_ms)
    queued = (image.delete_queue.get(uuid) for uuid in dict.fromkeys(command.uuids[:MAX_DELETES]))
    due = tuple(
        line.uuid
        for line in queued
        if line is not None and line.queued_ms <= latest_ms and can_be_marked(image, line)
    )
    return done(r.RemoteDeletesStarted(uuids=due, at_ms=now_ms))


@safeguard("objects stay for the grace after they have left the manifest")
def _queued_until_ms(now_ms: int, grace_ms: int) -> int:
    return now_ms - max(grace_ms, 0)


def can_be_marked(image: ClusterImage, line: Deletion) -> bool:
    """Whether a deletion is not marked yet, and no unread manifest in the bucket may list the object."""
    if line.uuid in image.deleting:
        return False
    return not (isinstance(line, QueuedDelete) and (line.topic_id, line.partition) in image.unread_manifests)


def confirm_deleted(image: ClusterImage, command: c.ConfirmRemoteDeleted) -> Decision[c.Acknowledged]:
    known = tuple(uuid for uuid in dict.fromkeys(command.uuids) if uuid in image.delete_queue)
    return done(r.RemoteDeleted(uuids=known)) if known else done()


def start_spill(image: ClusterImage, command: c.StartSpill, now_ms: int) -> Decision[c.Acknowledged]:
    partition = partition_of(image, command.topic_id, command.partition)
    check_epoch(partition, command.leader_epoch)
    if _is_announced(image, command):
        return done()
    remote = image.remote_partition(command.topic_id, command.partition)
    check_fresh_uuid(image, remote, command.uuid)
    return done(
        r.SpillStarted(
            topic_id=command.topic_id,
            partition=command.partition,
            uuid=command.uuid,
            base_offset=command.base_offset,
            last_offset=command.last_offset,
            leader_epoch=command.leader_epoch,
            expires_ms=now_ms + SPILL_TIMEOUT_MS,
        )
    )


def _is_announced(image: ClusterImage, command: c.StartSpill) -> bool:
    """Whether the command is a repetition. A repetition does not prolong the time to finish the page."""
    line = image.delete_queue.get(command.uuid)
    if not isinstance(line, QueuedDelete) or not line.is_unfinished_page or image.is_being_deleted(line.uuid):
        return False
    known = line.topic_id, line.partition, line.base_offset, line.last_offset, line.leader_epoch
    offsets = command.base_offset, command.last_offset
    return known == (command.topic_id, command.partition, *offsets, command.leader_epoch)


def spill_entries(image: ClusterImage, command: c.SpillEntries, now_ms: int) -> Decision[c.Acknowledged]:
    """The page must contain exactly what it replaces, and its deletion must not have begun."""
    page = command.page
    partition = partition_of(image, command.topic_id, command.partition)
    remote = image.remote_partition(command.topic_id, command.partition)
    if page in remote.pages:
        return done()
    check_epoch(partition, command.leader_epoch)
    check_announced_page(image, page)
    if not command.replaced:
        spilled = remote.entries[: max(page.entries, 0)]
        if page.level or not spilled or len(spilled) != page.entries or not _matches(page, spilled):
            raise Refusal(ErrorCode.INVALID_REQUEST, f"page {page.uuid} does not match the oldest entries")
        return done(r.EntriesSpilled(topic_id=command.topic_id, partition=command.partition, page=page))
    check_format(image, 2)
    run = find_run(remote, command.replaced)
    continued, moved = _split(run, page.level)
    is_complete = bool(moved) and all(_level(node) == page.level - 1 for node in moved)
    width = len(moved) + sum(one.width for one in continued)
    before = remote.nodes[: remote.nodes.index(run[0])]
    ascends = bool(before) and _level(before[-1]) < page.level
    if ascends or not is_complete or page.width != width or not _matches(page, run):
        raise Refusal(ErrorCode.INVALID_REQUEST, f"page {page.uuid} does not match the nodes it replaces")
    return done(
        r.RemoteLogSpliced(
            topic_id=command.topic_id,
            partition=command.partition,
            replaced=command.replaced,
            pages=(page,),
            entries=(),
            finished=(page.uuid,),
            dropped=tuple(map(dropped_alone, continued)),
            at_ms=now_ms,
        )
    )


def find_run(remote: RemotePartition, ids: Sequence[UUID]) -> tuple[r.ManifestNode, ...]:
    """The successive nodes with these ids. Raises Refusal if the manifest has no such run."""
    nodes = remote.nodes
    first = next((at for at, node in enumerate(nodes) if node.uuid == ids[0]), len(nodes))
    run = nodes[first : first + len(ids)]
    if [node.uuid for node in run] != list(ids):
        raise Refusal(ErrorCode.INVALID_REQUEST, f"the manifest has no run of {len(ids)} nodes from {ids[0]}")
    return run


def _split(run: Sequence[r.ManifestNode], level: int) -> tuple[list[r.PageRef], Sequence[r.ManifestNode]]:
    """The page that a new page of this level continues, if there is one, and the nodes that it adds."""
    first = run[0]
    if isinstance(first, r.PageRef) and first.level == level:
        return [first], run[1:]
    return [], run


def _level(node: r.ManifestNode) -> int:
    return node.level if isinstance(node, r.PageRef) else -1


def dropped_alone(page: r.PageRef) -> r.DroppedObject:
    """A page that another one replaces: what it names is still in the manifest."""
    return _dropped(page, ALONE)


def dropped_with_segments(page: r.PageRef) -> r.DroppedObject:
    return _dropped(page, WITH_SEGMENTS)


def dropped_segment(segment: r.RemoteSegment) -> r.DroppedObject:
    return _dropped(segment, segment.leader_epoch)


def _dropped(node: r.ManifestNode, leader_epoch: int) -> r.DroppedObject:
    return r.DroppedObject(
        uuid=node.uuid,
        is_page=isinstance(node, r.PageRef),
        base_offset=node.base_offset,
        last_offset=node.last_offset,
        leader_epoch=leader_epoch,
        log_bytes=0 if leader_epoch == ALONE else node.log_bytes,
        segments=0 if leader_epoch == ALONE else node.entries if isinstance(node, r.PageRef) else 1,
    )


def check_announced_page(image: ClusterImage, page: r.PageRef) -> None:
    deletion = image.delete_queue.get(page.uuid)
    is_announced = isinstance(deletion, QueuedDelete) and deletion.is_unfinished_page
    if not is_announced or image.is_being_deleted(page.uuid):
        message = f"page {page.uuid} was not announced, or so long ago that it is being deleted"
        raise Refusal(ErrorCode.INVALID_REQUEST, message)


def _check_replacement(remote: RemotePartition, copy: r.CopyStarted) -> None:
    first, end = remote.first_offset, remote.end_offset
    is_remote = first is not None and end is not None and first <= copy.base_offset
    if not (is_remote and copy.base_offset <= copy.last_offset < (end or 0)):
        message = f"offsets {copy.base_offset} to {copy.last_offset} are not remote: nothing is replaced"
        raise Refusal(ErrorCode.INVALID_REQUEST, message)


def _check_load(remote: RemotePartition, copy: r.CopyStarted) -> None:
    if not remote.used_end_offset <= copy.base_offset <= copy.last_offset:
        message = f"offsets {copy.base_offset} to {copy.last_offset} are not above the remote log"
        raise Refusal(ErrorCode.INVALID_REQUEST, message)


def partition_of(image: ClusterImage, topic_id: UUID, number: int) -> PartitionRecord:
    partition = image.partition(topic_id, number)
    if partition is None:
        error = (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic_id in image.topics else ErrorCode.UNKNOWN_TOPIC_ID
        )
        raise Refusal(error, f"there is no partition {number} of topic {topic_id}")
    return partition


@safeguard("only the leader of the upload's epoch commits a remote segment")
def check_leader(partition: PartitionRecord, broker_id: int, leader_epoch: int) -> None:
    if partition.leader != broker_id:
        message = f"the leader is broker {partition.leader}, not {broker_id}"
        raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
    check_epoch(partition, leader_epoch)


def is_tiered(image: ClusterImage, topic_id: UUID) -> bool:
    """remote.storage.enable has no default of a node or of the cluster."""
    chosen = image.topic_overrides(image.topics[topic_id].name).get(_ENABLE.name)
    return bool(_ENABLE.default if chosen is None else _ENABLE.parse(chosen))


def check_epoch(partition: PartitionRecord, leader_epoch: int) -> None:
    if leader_epoch < partition.leader_epoch:
        message = f"leader epoch {leader_epoch} is stale; the current one is {partition.leader_epoch}"
        raise Refusal(ErrorCode.FENCED_LEADER_EPOCH, message)
    if leader_epoch > partition.leader_epoch:
        raise Refusal(
            ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {leader_epoch} is not known to the controller"
        )


def _check_start(remote: RemotePartition, kept: Sequence[StartedCopy], copy: r.CopyStarted) -> None:
    if not 0 <= copy.base_offset <= copy.last_offset:
        message = f"offsets {copy.base_offset} to {copy.last_offset} are not a range"
        raise Refusal(ErrorCode.INVALID_REQUEST, message)
    if copy.last_offset < remote.log_start_offset:
        message = f"the log starts at {remote.log_start_offset}; the copy would end at {copy.last_offset}"
        raise Refusal(ErrorCode.OFFSET_OUT_OF_RANGE, message)
    if len(remote.entries) + len(kept) >= MAX_ENTRIES:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{MAX_ENTRIES} entries: spill the oldest to a page first")
    if kept:
        if copy.base_offset != kept[-1].last_offset + 1:
            message = f"the next copy starts at {kept[-1].last_offset + 1}, not at {copy.base_offset}"
            raise Refusal(ErrorCode.INVALID_REQUEST, message)
    else:
        _check_base(remote, copy.base_offset)


def _check_base(remote: RemotePartition, base_offset: int) -> None:
    """A copy must start where the last finished one ended. If retention has deleted all finished copies, it
    may start later, up to the log start offset (which may be inside a segment). The first copy of a partition
    may start anywhere."""
    earliest = remote.end_offset if remote.end_offset is not None else remote.copied_end_offset
    if earliest is None:
        return
    latest = earliest if remote.end_offset is not None else max(earliest, remote.log_start_offset)
    if not earliest <= base_offset <= latest:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"the next copy starts at {earliest}, not at {base_offset}")


def check_fresh_uuid(image: ClusterImage, remote: RemotePartition, uuid: UUID) -> None:
    """An id is used for one attempt only: a queued deletion of an earlier attempt would delete the new
    object."""
    is_pending = uuid in image.delete_queue or _find(remote.started, uuid) is not None
    number = uuid.int  # a UUID is compared and hashed by Python code: slow for hundreds of entries
    if is_pending or any(node.uuid.int == number for node in remote.nodes):
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{uuid} was already used")


def _supersedes(copy: r.CopyStarted, other: StartedCopy) -> bool:
    """Whether a new copy replaces a started one. A copy of another epoch can never finish. If a copy of the
    same epoch overlaps the new one, the leader has abandoned it and all copies after it. Copies for
    ReplaceSegments are apart from the others, and so are those of bulk loads, which replace none."""
    if other.leader_epoch != copy.leader_epoch:
        return True
    if copy.loads or other.loads:
        return False
    if copy.replaces or other.replaces:
        both = copy.replaces and other.replaces
        return both and copy.base_offset <= other.last_offset and other.base_offset <= copy.last_offset
    return copy.base_offset <= other.last_offset


def count_segments(nodes: Iterable[r.ManifestNode]) -> int:
    return sum(node.entries if isinstance(node, r.PageRef) else 1 for node in nodes)


def _matches(page: r.PageRef, spilled: Sequence[r.ManifestNode]) -> bool:
    return (
        page.base_offset == spilled[0].base_offset
        and page.last_offset == spilled[-1].last_offset
        and page.entries == count_segments(spilled)
        and page.log_bytes == sum(entry.log_bytes for entry in spilled)
        and page.max_timestamp == max(entry.max_timestamp for entry in spilled)
    )


def _copy_started(command: c.StartCopy, now_ms: int) -> r.CopyStarted:
    return r.CopyStarted(
        topic_id=command.topic_id,
        partition=command.partition,
        uuid=command.uuid,
        base_offset=command.base_offset,
        last_offset=command.last_offset,
        leader_epoch=command.leader_epoch,
        at_ms=now_ms,
        replaces=command.replaces,
        loads=command.loads,
    )


def _copy_abandoned(command: c.StartCopy | c.AbandonCopy, uuid: UUID, now_ms: int) -> r.CopyAbandoned:
    return r.CopyAbandoned(topic_id=command.topic_id, partition=command.partition, uuid=uuid, at_ms=now_ms)


def _find(started: Sequence[StartedCopy], uuid: UUID) -> StartedCopy | None:
    return next((copy for copy in started if copy.uuid == uuid), None)


def _identity(copy: StartedCopy | r.CopyStarted) -> tuple[int, int, int, bool, bool]:
    return *_range(copy), copy.leader_epoch, copy.replaces, copy.loads


def _range(copy: StartedCopy | r.CopyStarted | r.RemoteSegment) -> tuple[int, int]:
    return copy.base_offset, copy.last_offset
