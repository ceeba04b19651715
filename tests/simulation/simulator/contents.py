"""Contents of objects and of local logs, for the witness of the remote tier."""

from collections.abc import Iterator

from simulator.witness import Violation
from tierlog.base.types import TopicIdPartition
from tierlog.broker.replication.replica import Replica
from tierlog.records.batch import BatchHeader, check_batch, iter_batches
from tierlog.records.errors import RecordsError
from tierlog.records.record import iter_records
from tierlog.tiering.format.manifest import ManifestError, ManifestRoot, decode_root


def decoded_root(content: bytes) -> ManifestRoot | None:
    try:
        return decode_root(content)
    except ManifestError:
        return None


def end_of(root: ManifestRoot | None) -> int:
    newest = () if root is None else (root.entries[-1:] or root.pages[-1:])
    return newest[0].last_offset + 1 if newest else 0


def checked_batches(where: TopicIdPartition, content: bytes) -> Iterator[tuple[int, BatchHeader]]:
    at = 0
    while at < len(content):
        try:
            header = check_batch(content, at)
        except RecordsError as error:
            raise Violation(f"{where}: a copy is damaged: {error}") from error
        yield at, header
        at += header.size


def records_of(content: bytes) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    for at, _ in iter_batches(content):
        for record in iter_records(content, at, max_bytes=1 << 20):
            key, value = record.key, record.value
            yield record.offset, key if key is None else bytes(key), value if value is None else bytes(value)


def local_batches(replica: Replica, start: int, end: int | None = None) -> bytes:
    """Batches of a log from `start` on, read from the files, because reads of the port may fail.

    A damaged batch below the log start stays there, and its header may have any base offset: the next batch
    shows where it ends.
    """
    parts = []
    for part in replica.segments:
        if not part.size_bytes or part.end_offset <= start or (end is not None and part.base_offset >= end):
            continue
        content = part.path_log.read_bytes()[: part.size_bytes]
        batches = list(iter_batches(content))
        following = [*(header.base_offset for _, header in batches[1:]), part.end_offset]
        for (at, header), next_base_offset in zip(batches, following, strict=True):
            is_wanted = min(header.next_offset, next_base_offset) > start
            if is_wanted and (end is None or header.base_offset < end):
                parts.append(content[at : at + header.size])
    return b"".join(parts)
