"""Tiering: builds store, cache, remote log, remote log manager and storage cleaner of one broker.

Called by app.py. `RemoteTier` reads the store, for handlers and fetchers; `Tiering` writes to it for the
replicas. `close` comes before the replicas close.
"""

import random
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from tierlog.base.clock import Clock
from tierlog.base.files import Files
from tierlog.base.network import Network
from tierlog.base.tasks import Report, TaskGroup
from tierlog.base.types import TopicIdPartition, TopicPartition
from tierlog.broker.maintenance.log_repair import LogRepair
from tierlog.broker.remote.bucket_scrubber import BucketScrubber
from tierlog.broker.remote.diverged_segments import DivergedSegments
from tierlog.broker.remote.loads import Loads
from tierlog.broker.remote.manifest_check import ManifestCheck
from tierlog.broker.remote.manifest_recovery import ManifestRecovery
from tierlog.broker.remote.remote_compactor import RemoteCompactor
from tierlog.broker.remote.remote_log_manager import RemoteLogManager
from tierlog.broker.remote.remote_repair import RemoteRepair
from tierlog.broker.remote.remote_storage_cleaner import RemoteStorageCleaner
from tierlog.broker.remote.replacements import Replacements
from tierlog.broker.remote.segment_merger import SegmentMerger
from tierlog.broker.remote.tier_snapshots import TierSnapshots
from tierlog.broker.remote.tier_state_machine import TierStateMachine
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.config.node import NodeSettings
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.tiering.bucket_audit import BucketAuditor
from tierlog.tiering.chunk_cache import ChunkCache
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.manager import TierManager
from tierlog.tiering.metered_store import MeteredStore
from tierlog.tiering.object_store import ObjectStore, ObjectStoreError
from tierlog.tiering.page_tree import image_budget
from tierlog.tiering.quarantine import Quarantine
from tierlog.tiering.rate_limit import RateLimit
from tierlog.tiering.remote_log import RemoteLog
from tierlog.tiering.store_health import HealthyStore
from tierlog.tiering.store_probe import probe_store
from tierlog.tiering.stores import NoStore, store_from_url
from tierlog.tiering.verifier import RemoteVerifier

_log = structlog.get_logger("tierlog.tiering")

OBJECTS_DIRECTORY = "objects"
CACHE_DIRECTORY = "remote-cache"
SCRATCH_DIRECTORY = "remote-compaction"

NO_STORE_URL = "object.store.url is not set: topics of a cluster need a store that all brokers reach"


class RemoteTier:
    """The remote tier as read by one broker.

    `objects`: a store to use instead of object.store.url. `network`: to the other brokers; None for a
    standalone broker, which may use a local directory as its store.
    """

    def __init__(
        self,
        settings: NodeSettings,
        metadata: MetadataClient,
        files: Files,
        clock: Clock,
        report: Report,
        *,
        cluster_id: str,
        data_directory: Path,
        cache_directory: Path | None = None,
        objects: ObjectStore | None = None,
        network: Network | None = None,
    ) -> None:
        self.tasks = TaskGroup(report)
        self._metadata = metadata
        self.directory = data_directory.absolute() / OBJECTS_DIRECTORY
        self.scratch = (cache_directory or data_directory) / SCRATCH_DIRECTORY
        self.has_store = objects is not None or network is None or bool(settings.object_store_url)
        url = settings.object_store_url or self.directory.as_uri()
        opened = objects or (store_from_url(url) if self.has_store else NoStore(NO_STORE_URL))
        is_foreign = objects is None and bool(settings.object_store_url)  # also a directory may be a mount
        self.keys = keys = Keys(cluster_id)
        probe_key = keys.probe(settings.node_id)
        check = partial(probe_store, key=probe_key) if is_foreign and self.has_store else None
        metered = MeteredStore(opened)
        self.store_counts = metered.counts
        self.store = HealthyStore(
            metered,
            self.tasks,
            check=check,
            probe_key=probe_key,
            fetch_rate=RateLimit(settings.remote_log_manager_fetch_max_bytes_per_second),
        )
        self.cache = ChunkCache(
            _cache_directory(settings, cluster_id, cache_directory or data_directory),
            settings.remote_cache_bytes,
            files,
            self.tasks,
            memory_bytes=settings.remote_cache_memory_bytes,
            downloads_at_once=settings.remote_log_reader_threads,
        )

        def name_of(where: TopicIdPartition) -> TopicPartition:
            topic = metadata.image.topics.get(where.topic_id)
            return TopicPartition(str(where.topic_id) if topic is None else topic.name, where.partition)

        copy_rate = RateLimit(settings.remote_log_manager_copy_max_bytes_per_second)
        self.manager = TierManager(self.store, keys, copy_rate=copy_rate)
        resolve = lambda where: metadata.image.remote_partition(*where)  # noqa: E731
        self.log = RemoteLog(
            self.store,
            keys,
            self.cache,
            self.tasks,
            resolve,
            Quarantine(clock, name_of),
            settings.remote_log_metadata_cache_bytes - image_budget(settings.remote_log_metadata_cache_bytes),
        )
        self.verifier = RemoteVerifier(self.store, keys, self.log, resolve)
        self.auditor = BucketAuditor(self.store, keys, self.log, lambda: metadata.image, metadata.current)
        self.state_machine = TierStateMachine(
            settings.node_id,
            network,
            lambda: metadata.image,
            self.log,
            clock,
            skip_tiered=settings.follower_fetch_last_tiered_offset_enable,
        )

    def log_unreachable_data(self) -> None:
        """A standalone node has its own directory as the store, which is not used once it may have peers."""
        remote = self._metadata.image.remote.values()
        lost = sum(partition.first_offset is not None for partition in remote)
        if lost and not self.has_store:
            _log.error(
                "store.unset",
                partitions=lost,
                directory=self.directory.as_uri(),
            )

    def configure(self, settings: NodeSettings) -> None:
        """Apply remote.log.reader.threads and the rates of remote.log.manager.*."""
        self.cache.limit_downloads(settings.remote_log_reader_threads)
        self.manager.copy_rate.change(settings.remote_log_manager_copy_max_bytes_per_second)
        self.store.fetch_rate.change(settings.remote_log_manager_fetch_max_bytes_per_second)

    async def close(self) -> None:
        """Stop all tasks; the next start finds unfinished copies and deletions, and repeats them."""
        await self.tasks.close()
        self.cache.close()
        await self.store.close()


def _cache_directory(settings: NodeSettings, cluster_id: str, usual: Path) -> Path:
    if not settings.remote_cache_directory:
        return usual / CACHE_DIRECTORY
    own = f"{CACHE_DIRECTORY}-{cluster_id}-{settings.node_id}"  # brokers of several clusters may share it
    return Path(settings.remote_cache_directory).absolute() / own


class Tiering:
    """Uploads, retention and cleanup of one broker."""

    def __init__(
        self,
        settings: NodeSettings,
        metadata: MetadataClient,
        tier: RemoteTier,
        replicas: ReplicaManager,
        files: Files,
        clock: Clock,
        rng: random.Random,
        log_repair: LogRepair,
    ) -> None:
        self._tier = tier
        self.log_manager = RemoteLogManager(
            broker_id=settings.node_id,
            metadata=metadata,
            replicas=replicas,
            manager=tier.manager,
            remote_log=tier.log,
            files=files,
            clock=clock,
            rng=rng,
            tasks=tier.tasks,
            interval_ms=settings.remote_log_manager_task_interval_ms,
            metadata_cache_bytes=settings.remote_log_metadata_cache_bytes,
            store_health=tier.store.health,
        )
        self.diverged_segments = DivergedSegments(settings.node_id, metadata, tier.tasks)
        self.manifest_recovery = ManifestRecovery(
            settings.node_id, metadata, tier.manager, tier.tasks, has_store=tier.has_store
        )
        self.storage_cleaner = RemoteStorageCleaner(
            broker_id=settings.node_id,
            metadata=metadata,
            manager=tier.manager,
            clock=clock,
            tasks=tier.tasks,
            delete_grace_ms=settings.remote_log_delete_grace_ms,
        )

        self.manifest_check = ManifestCheck(
            settings.node_id, metadata, tier.keys, tier.manager, self.log_manager, self.storage_cleaner
        )
        self.scrubber = BucketScrubber(
            settings, metadata, tier.verifier, tier.auditor, self.manifest_check, tier.tasks, rng
        )
        self.snapshots = TierSnapshots(metadata, tier.manager.snapshots, clock, rng)
        rate = RateLimit(settings.remote_log_merge_max_bytes_per_second)
        rewrites = settings, metadata, self.log_manager, tier.manager, tier.log, tier.store, tier.keys
        compactor = RemoteCompactor(*rewrites, files, clock, tier.scratch, rate)
        self.merger = SegmentMerger(*rewrites, tier.tasks, rate, compactor)
        self.replacements = Replacements(
            metadata, self.log_manager, tier.log, tier.store, tier.keys, clock, tier.tasks
        )
        self.loads = Loads(
            settings.node_id, metadata, self.log_manager, tier.store, tier.keys, clock, tier.tasks
        )
        self.remote_repair = RemoteRepair(
            metadata,
            replicas,
            self.log_manager,
            tier.manager,
            tier.log,
            tier.store,
            tier.keys,
            clock,
            tier.tasks,
            log_repair,
            settings.remote_log_manager_task_interval_ms,
        )

    def start(self) -> None:
        """Start the background tasks, even while the store is unavailable."""
        self.log_manager.start()
        if self._tier.has_store:
            self.storage_cleaner.start()
            self._tier.tasks.spawn("check of the object store", self._check_store())
            self.scrubber.start()
            self.merger.start()
            self.replacements.start()
            self.loads.start()
            self.remote_repair.start()
        self._tier.log_unreachable_data()

    async def _check_store(self) -> None:
        with suppress(ObjectStoreError):  # logged if it is refused; else the next call checks again
            await self._tier.store.check()
