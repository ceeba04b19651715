"""Offsets of partitions as the manifests in the bucket have them: for streams without brokers, and for the
part of a stream that is read from the bucket."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.history.plan import OffsetRange, Source, choose_sources
from tierlog.spark.history.snapshot import READS_AT_ONCE, PartitionView, documents_for, find_cluster
from tierlog.spark.options.stream import StreamOptions
from tierlog.tiering.format.keys import Keys


class BucketPositions:
    """Partitions and committed offsets, by topic documents and manifests. Each call reads them again."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._bucket = open_bucket(options.read.store)
        self._keys = Keys(find_cluster(self._bucket, options.read.cluster))

    def close(self) -> None:
        """Nothing is open."""

    def sources(self) -> list[Source]:
        """The partitions that the options select, as of now. Raises InvalidOption."""
        with ThreadPoolExecutor(READS_AT_ONCE) as pool:
            read = self._options.read
            return choose_sources(documents_for(self._bucket, self._keys, read, pool), read)

    def committed(self, source: Source) -> OffsetRange:
        """The offsets in the bucket; (0, 0) if nothing was uploaded yet."""
        return self._view(source).committed

    def earliest(self, sources: Iterable[Source]) -> dict[Source, int]:
        return {source: self.committed(source).start for source in sources}

    def latest(self, sources: Iterable[Source]) -> dict[Source, int]:
        return {source: self.committed(source).end for source in sources}

    def at_timestamps(self, timestamps: Mapping[Source, int]) -> dict[Source, int]:
        """The first offset with a partition's timestamp or a later one; the latest if there is none."""
        return {source: self._view(source).offset_at(stamp) for source, stamp in timestamps.items()}

    def _view(self, source: Source) -> PartitionView:
        return PartitionView(self._bucket, self._keys, source)
