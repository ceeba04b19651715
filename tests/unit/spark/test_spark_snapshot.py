"""Look-ups over a bucket directory without Spark: timestamps against a plain scan, clusters, topics."""

import random
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from crc32c import crc32c
from msgspec.structs import replace
from spark_bucket import CLUSTER, BucketWriter
from spark_history import FIRST_MS, LOG_START, write_history

from tierlog.base.types import TopicIdPartition, random_uuid
from tierlog.metadata.records import compaction_tags
from tierlog.records.batch import iter_batches
from tierlog.records.chunks import CHUNK_BYTES
from tierlog.records.indexes import TXN_ENTRY, AbortedTxn
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark.history import snapshot
from tierlog.spark.history.bucket import DirectoryBucket, open_bucket
from tierlog.spark.history.plan import OffsetsUnavailable, Part, Pruning, Source
from tierlog.spark.history.snapshot import (
    PartitionView,
    find_cluster,
    open_partitions,
    plan_parts,
    plan_splits,
    read_part,
    read_split,
)
from tierlog.spark.options import InvalidOption, StoreAddress, parse_options
from tierlog.tiering.format.bundle import HEAD_BYTES, Section, read_places
from tierlog.tiering.format.manifest import (
    ManifestPage,
    ManifestRoot,
    encode_page,
    encode_root,
    page_reference,
)
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound, ObjectStoreError

HOUR_MS = 3_600_000


class CountingBucket(DirectoryBucket):
    """Keeps the end of the key and the number of bytes of each read."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.reads: list[tuple[str, int]] = []

    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        content = super().read(key, start, end)
        self.reads.append((key.rpartition(".")[2], len(content)))
        return content

    def index_reads(self) -> list[int]:
        return [size for suffix, size in self.reads if suffix == "idx"]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> BucketWriter:
    return write_history(tmp_path_factory.mktemp("bucket"))


def large_segments(directory: Path, chunk_bytes: int | None, aborted: int = 0) -> BucketWriter:
    """Topic `t` with three segments of 10 MiB, of which the last has aborted transactions. Timestamps are
    offsets. The bundles have 40 KiB and more."""
    writer = BucketWriter(directory, chunk_bytes)
    writer.topic("t", 1)
    for segment in range(3):
        batches = []
        for offset in range(segment * 5_120, (segment + 1) * 5_120, 2):
            records = [NewRecord(offset + n, None, bytes(2 << 10)) for n in range(2)]
            batches.append(encode_batch(records, base_offset=offset))
        txns = [AbortedTxn(7, at, at + 1, at + 2) for at in range(10_240, 10_240 + aborted)]
        writer.segment("t", 0, batches, index_bytes=1, aborted=txns if segment == 2 else ())
    writer.commit("t", 0)
    return writer


def view(writer: BucketWriter, topic: str, partition: int) -> PartitionView:
    source = Source(topic, writer.topics[topic], partition)
    return PartitionView(DirectoryBucket(writer.root), writer.keys, source)


def test_every_timestamp_finds_the_first_record_that_reaches_it(history: BucketWriter) -> None:
    rows = [row for row in history.rows["flights", 0] if row["offset"] >= LOG_START]
    found = view(history, "flights", 0)
    rng = random.Random(5)
    stamps = [
        FIRST_MS - 1,
        rows[0]["timestamp_ms"],
        rows[-1]["timestamp_ms"],
        rows[-1]["timestamp_ms"] + 120_000,
    ]
    stamps += [rng.choice(rows)["timestamp_ms"] + rng.choice((-1, 0, 1)) for _ in range(60)]
    for stamp in stamps:
        expected = next((row["offset"] for row in rows if row["timestamp_ms"] >= stamp), found.committed.end)
        assert found.offset_at(stamp) == expected


@pytest.mark.parametrize("chunk_bytes", (CHUNK_BYTES, None))
def test_a_batch_longer_than_one_read_is_found_by_time(tmp_path: Path, chunk_bytes: int | None) -> None:
    writer = BucketWriter(tmp_path, chunk_bytes)
    writer.topic("big", 1)
    small = encode_batch([NewRecord(1, None, b"x")])
    large = encode_batch([NewRecord(2, None, bytes(9 << 20)), NewRecord(3, None, b"y")], base_offset=1)
    writer.segment("big", 0, [small, large])
    writer.commit("big", 0)
    assert [view(writer, "big", 0).offset_at(stamp) for stamp in (1, 2, 3, 4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("chunk_bytes", (CHUNK_BYTES, None))
def test_timestamps_are_found_in_segments_of_several_chunks(tmp_path: Path, chunk_bytes: int | None) -> None:
    found = view(large_segments(tmp_path, chunk_bytes), "t", 0)
    stamps = (-1, 0, 1, 4_000, 4_100, 5_119, 5_120, 9_999, 15_359, 15_360)
    assert [found.offset_at(stamp) for stamp in stamps] == [max(stamp, 0) for stamp in stamps]


def test_plan_reads_the_head_of_each_bundle_and_transactions_where_some_were_aborted(tmp_path: Path) -> None:
    large_segments(tmp_path, CHUNK_BYTES, aborted=1_000)
    bucket, options = CountingBucket(tmp_path), parse_options({"path": str(tmp_path), "topic": "t"})
    parts = plan_parts(bucket, options, Pruning())
    assert sorted(bucket.index_reads()) == [HEAD_BYTES] * 3 + [1_000 * TXN_ENTRY.size]
    assert [len(part.aborted) for part in parts] == [0, 0, 0, 0, 1_000, 1_000]
    assert all(
        crc32c(bucket.read(part.key, part.start, part.end)) == part.crc32c and part.start < part.end
        for part in parts
    )


def test_search_for_a_timestamp_reads_one_head_and_one_chunk(tmp_path: Path) -> None:
    writer = large_segments(tmp_path, CHUNK_BYTES)
    bucket = CountingBucket(tmp_path)
    source = Source("t", writer.topics["t"], 0)
    assert PartitionView(bucket, writer.keys, source).offset_at(9_999) == 9_999
    assert bucket.index_reads() == [HEAD_BYTES]
    (chunk,) = (size for suffix, size in bucket.reads if suffix == "log")
    assert chunk < CHUNK_BYTES


YEAR_CHUNK_BYTES = 20_000


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topic `year`, two segments, a batch of three records an hour; every seventh is in descending order."""
    writer = BucketWriter(tmp_path_factory.mktemp("year"), YEAR_CHUNK_BYTES)
    writer.topic("year", 1)
    for segment in range(2):
        batches = []
        for hour in range(segment * 4_380, (segment + 1) * 4_380):
            stamps = [hour * HOUR_MS + minute * 60_000 for minute in range(0, 60, 20)]
            records = [NewRecord(at, None, bytes(40)) for at in (stamps if hour % 7 else stamps[::-1])]
            batches.append(encode_batch(records, base_offset=hour * 3))
        writer.segment("year", 0, batches)
    writer.commit("year", 0)
    return writer.root


@pytest.mark.parametrize("how", ("options", "filters"))
@pytest.mark.parametrize("hour", (1, 3_000, 4_379, 8_000))
def test_one_hour_of_a_year_reads_at_most_two_chunks_more_than_needed(
    year: Path, monkeypatch: pytest.MonkeyPatch, how: str, hour: int
) -> None:
    """With chunks of 20 kB for 8 MiB: a search for a timestamp reads one."""
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", YEAR_CHUNK_BYTES)
    monkeypatch.setattr(snapshot, "SCAN_BYTES", 1)
    chunk, start, end = YEAR_CHUNK_BYTES, hour * HOUR_MS, (hour + 1) * HOUR_MS
    given = {"path": str(year), "subscribe": "year", "splitBytes": "1"}
    if how == "options":
        given |= {"startingTimestamp": str(start), "endingTimestamp": str(end)}
        pruning = Pruning()
    else:
        given |= {"maxLateness": str(HOUR_MS)}
        pruning = Pruning().narrow("timestamp", ">=", datetime.fromtimestamp(start / 1000, UTC))
        pruning = pruning.narrow("timestamp", "<", datetime.fromtimestamp(end / 1000, UTC))
    bucket, options = CountingBucket(year), parse_options(given)
    splits = plan_splits(bucket, options, pruning)
    found: list[int] = []
    for split in splits:
        for part, data in read_split(bucket, options, split):
            records = (
                one for at, _ in iter_batches(data) for one in iter_records(data, at, max_bytes=1 << 20)
            )
            found += [
                one.offset
                for one in records
                if part.offsets.start <= one.offset < part.offsets.end and start <= one.timestamp < end
            ]
    assert found == list(range(hour * 3, hour * 3 + 3))
    read = sum(size for suffix, size in bucket.reads if suffix == "log")
    scanned_by_the_plan = 2 * chunk if how == "options" else chunk
    assert read <= scanned_by_the_plan + 3 * chunk, "one chunk is needed, or two if the hour crosses a border"
    assert sum(part.end - part.start for split in splits for part in split) <= 3 * chunk


def test_pages_are_read_in_parallel_and_in_order(tmp_path: Path) -> None:
    writer = BucketWriter(tmp_path)
    writer.topic("t", 1)
    for at in range(60):
        writer.segment("t", 0, [encode_batch([NewRecord(at, None, b"x")], base_offset=at)])
    where = TopicIdPartition(writer.topics["t"], 0)
    pages = []
    for at in range(0, 60, 3):
        page = ManifestPage(
            topic_id=where.topic_id, partition=0, entries=tuple(writer.entries[where][at : at + 3])
        )
        encoded = encode_page(page)
        pages.append(page_reference(random_uuid(writer.rng), page, encoded))
        writer.put(writer.keys.page(where, pages[-1]), encoded)
    root = ManifestRoot(
        topic_id=where.topic_id,
        partition=0,
        version=1,
        metadata_index=1,
        leader_epoch=0,
        log_start_offset=0,
        pages=tuple(pages),
        entries=(),
    )
    writer.put(writer.keys.root(where), encode_root(root))
    options = parse_options({"path": str(tmp_path), "subscribe": "t"})
    parts = plan_parts(open_bucket(options.store), options, Pruning())
    assert [part.offsets.start for part in parts] == list(range(60))


def test_lost_objects_are_left_out_if_the_user_accepts_it(tmp_path: Path) -> None:
    writer = large_segments(tmp_path, CHUNK_BYTES)
    given = {"path": str(tmp_path), "subscribe": "t"}
    options = parse_options(given)
    bucket = open_bucket(options.store)
    (*_, split) = plan_splits(bucket, options, Pruning())
    (tmp_path / split[-1].key).unlink()
    with pytest.raises(ObjectStoreError, match="run the query again"):
        list(read_split(bucket, options, split))
    writer.commit("t", 0, log_start=15_360)
    lenient = parse_options({**given, "failOnDataLoss": "false"})
    with pytest.warns(UserWarning, match="lost"):
        left = [part for part, _ in read_split(bucket, lenient, split)]
    assert left == [part for part in split if part.key != split[-1].key]


def test_replaced_objects_are_an_error_also_if_the_user_accepts_losses(tmp_path: Path) -> None:
    """Their rows are still in the bucket, and an export would never come back to them."""
    writer = large_segments(tmp_path, CHUNK_BYTES)
    options = parse_options({"path": str(tmp_path), "subscribe": "t", "failOnDataLoss": "false"})
    bucket = open_bucket(options.store)
    (*_, split) = plan_splits(bucket, options, Pruning())
    (tmp_path / split[-1].key).unlink()
    ((where, entries),) = writer.entries.items()
    writer.entries[where] = [replace(entry, tags=compaction_tags(72, 1)) for entry in entries]
    writer.commit("t", 0)
    with pytest.raises(ObjectStoreError, match="run the query again"):
        list(read_split(bucket, options, split))


def test_offsets_of_a_partition_without_uploads_are_an_error(tmp_path: Path) -> None:
    writer = large_segments(tmp_path, CHUNK_BYTES)
    writer.topic("empty", 1)
    given = {"path": str(tmp_path), "subscribe": "empty", "startingOffsets": '{"empty":{"0":500}}'}
    options = parse_options(given)
    with pytest.raises(OffsetsUnavailable, match="offset 500 is not in the bucket"):
        plan_splits(open_bucket(options.store), options, Pruning())


def test_bundle_of_an_earlier_version_is_read_as_a_whole(tmp_path: Path) -> None:
    writer = large_segments(tmp_path, None, aborted=1_000)
    (entries,) = writer.entries.values()
    bucket, options = CountingBucket(tmp_path), parse_options({"path": str(tmp_path), "topic": "t"})
    parts = plan_parts(bucket, options, Pruning())
    bundles = [entry.index_bytes for entry in entries]
    assert sorted(bucket.index_reads()) == sorted([HEAD_BYTES] * 3 + bundles)
    assert [len(part.aborted) for part in parts] == [0, 0, 0, 0, 1_000, 1_000]
    assert {part.crc32c for part in parts} == {None}


def test_damaged_chunk_tables_and_transaction_indexes_are_errors(tmp_path: Path) -> None:
    writer = large_segments(tmp_path, CHUNK_BYTES, aborted=1_000)
    ((where, entries),) = writer.entries.items()
    options = parse_options({"path": str(tmp_path), "topic": "t"})
    path = tmp_path / writer.keys.index(where, entries[2])
    content = path.read_bytes()
    places = read_places(content)
    for kind in (Section.CHUNK_TABLE, Section.TXN_INDEX):
        writer.flip(path, places[kind].position + 20)
        with pytest.raises(CorruptObject, match=rf"t-0: .*\.idx: .*section {kind.value} is damaged"):
            plan_parts(open_bucket(options.store), options, Pruning())
        path.write_bytes(content)
    path.write_bytes((tmp_path / writer.keys.index(where, entries[1])).read_bytes() + bytes(len(content)))
    with pytest.raises(CorruptObject, match=r"\.idx: the chunk table belongs to another segment"):
        plan_parts(open_bucket(options.store), options, Pruning())


@pytest.mark.parametrize("position", (6, 40))
@pytest.mark.parametrize("chunk_bytes", (CHUNK_BYTES, 1_000, None))
def test_flipped_bits_are_found_also_where_a_batch_has_no_checksum(
    tmp_path: Path, chunk_bytes: int | None, position: int
) -> None:
    """In the base offset (6), and behind it (40)."""
    writer = BucketWriter(tmp_path, chunk_bytes)
    writer.topic("t", 1)
    batches = [encode_batch([NewRecord(1, None, bytes(400))], base_offset=at) for at in range(20)]
    writer.segment("t", 0, batches)
    writer.commit("t", 0)
    options = parse_options(
        {"path": str(tmp_path), "topic": "t", "splitBytes": "1000" if chunk_bytes == 1_000 else "8000000"}
    )
    parts = plan_parts(open_bucket(options.store), options, Pruning())
    assert len(parts) == (10 if chunk_bytes == 1_000 else 1)
    writer.flip(tmp_path / parts[-1].key, parts[-1].start + position)
    with pytest.raises(
        CorruptObject, match=r"t-0: .*\.log, bytes \d+ to \d+: the object is damaged: CRC-32C"
    ):
        list(read_part(open_bucket(options.store), options, parts[-1]))


@pytest.mark.parametrize(
    ("index_bytes", "chunk_bytes", "merged_chunk_bytes"),
    ((1, None, None), (300, None, None), (1 << 20, None, None), (300, None, 700), (300, 400, 700)),
)
def test_splits_of_merged_objects_have_the_same_batches(
    tmp_path: Path, index_bytes: int, chunk_bytes: int | None, merged_chunk_bytes: int | None
) -> None:
    """The objects of a plan are merged, and deleted, before its parts are read."""
    writer = BucketWriter(tmp_path, chunk_bytes)
    topic_id = writer.topic("t", 1)
    batches = [
        encode_batch([NewRecord(at + n, None, b"%060d" % (at + n)) for n in range(3)], base_offset=at)
        for at in range(0, 180, 3)
    ]
    for first in range(0, 60, 12):
        writer.segment("t", 0, batches[first : first + 12], index_bytes)
    writer.commit("t", 0)
    where = TopicIdPartition(topic_id, 0)
    options = parse_options(
        {
            "path": str(tmp_path),
            "topic": "t",
            "splitBytes": "500",
            "startingOffsets": '{"t":{"0":40}}',
            "endingOffsets": '{"t":{"0":160}}',
        }
    )
    bucket = open_bucket(options.store)
    parts = plan_parts(bucket, options, Pruning())

    def records(part: Part) -> list[tuple[int, bytes | None]]:
        data = b"".join(read_part(bucket, options, part))
        found = (one for at, _ in iter_batches(data) for one in iter_records(data, at, max_bytes=1 << 20))
        return [
            (one.offset, one.value) for one in found if part.offsets.start <= one.offset < part.offsets.end
        ]

    before = [records(part) for part in parts]
    assert [offset for part in before for offset, _ in part] == list(range(40, 160))
    for entry in writer.entries.pop(where):
        (tmp_path / writer.keys.log(where, entry)).unlink()
    writer.chunk_bytes = merged_chunk_bytes
    writer.segment("t", 0, batches[:24], index_bytes)
    writer.segment("t", 0, batches[24:], index_bytes)
    writer.commit("t", 0)
    assert [records(part) for part in parts] == before
    in_a_value = 20 * len(batches[0]) + 100
    writer.flip(writer.log_key("t", 0, 0), in_a_value)
    with pytest.raises(CorruptObject, match=r"t-0: .*\.log, bytes"):
        [records(part) for part in parts]
    writer.flip(writer.log_key("t", 0, 0), in_a_value)
    writer.entries[where][0] = replace(writer.entries[where][0], tags=compaction_tags(72, 1))
    writer.commit("t", 0)
    with pytest.raises(ObjectNotFound):
        list(read_part(bucket, options, parts[0]))
    assert records(parts[-1]) == before[-1], "its segment was not compacted"
    writer.commit("t", 0, log_start=100)
    with pytest.raises(ObjectNotFound):
        list(read_part(bucket, options, parts[0]))


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"flight":{"0":5}}'},
        {"startingOffsets": '{"flights":{"9":5}}'},
        {"endingOffsets": '{"weather":{"0":5}}'},
        {"startingOffsetsByTimestamp": '{"flights":{"9":5}}'},
    ],
)
def test_offsets_of_partitions_that_are_not_read_are_an_error(
    tmp_path: Path, options: dict[str, str]
) -> None:
    path = str(write_history(tmp_path).root)
    parsed = parse_options({"path": path, "topic": "flights", **options})
    with pytest.raises(InvalidOption, match="which the query does not read"):
        plan_splits(open_bucket(parsed.store), parsed, Pruning())


def test_topic_that_is_deleted_meanwhile_does_not_disturb_others(tmp_path: Path) -> None:
    history = write_history(tmp_path)

    class Deleting(DirectoryBucket):
        def keys(self, prefix: str) -> list[str]:
            found = super().keys(prefix)
            (history.root / history.keys.topic(history.topics["weather"])).unlink(missing_ok=True)
            return found

    bucket = Deleting(history.root)
    assert plan_splits(bucket, parse_options({"path": str(history.root), "topic": "flights"}), Pruning())
    with pytest.raises(InvalidOption, match="'weather' is not in the bucket"):
        plan_splits(bucket, parse_options({"path": str(history.root), "topic": "weather"}), Pruning())


@pytest.mark.parametrize("is_named", [True, False])
def test_topic_that_was_made_again_is_found_by_its_name(tmp_path: Path, is_named: bool) -> None:
    """The name of the earlier one is still there. Without a name of the new one, as below `tierlog.format` 4,
    its document is found in the list."""
    writer = BucketWriter(tmp_path)
    earlier, topic_id = writer.topic("t", 1), writer.topic("t", 1)
    (tmp_path / writer.keys.topic(earlier)).unlink()
    if not is_named:
        (tmp_path / writer.keys.topic_name("t", topic_id)).unlink()
    bucket, options = DirectoryBucket(tmp_path), parse_options({"path": str(tmp_path), "topic": "t"})
    with ThreadPoolExecutor(1) as pool:
        assert [view.source.topic_id for view in open_partitions(bucket, options, pool, pool)] == [topic_id]


def test_two_documents_of_one_name_are_an_error(tmp_path: Path) -> None:
    writer = BucketWriter(tmp_path)
    writer.topic("t", 1), writer.topic("t", 1)
    options = parse_options({"path": str(tmp_path), "topic": "t"})
    with pytest.raises(InvalidOption, match="more than once"):
        plan_splits(DirectoryBucket(tmp_path), options, Pruning())


@pytest.mark.parametrize("kind", ["topic", "root", "page"])
def test_damaged_documents_are_named(tmp_path: Path, kind: str) -> None:
    history = write_history(tmp_path)
    where = TopicIdPartition(history.topics["flights"], 0)
    key = {
        "topic": history.keys.topic(where.topic_id),
        "root": history.keys.root(where),
        "page": next(key for key in DirectoryBucket(tmp_path).keys("spark-test/") if key.endswith(".page")),
    }[kind]
    (tmp_path / key).write_bytes(b"damaged")
    with pytest.raises(CorruptObject, match=re.escape(key)):
        plan_splits(
            open_bucket(StoreAddress(path=str(tmp_path))),
            parse_options({"path": str(tmp_path), "topic": "flights"}),
            Pruning(),
        )


def test_a_bucket_names_its_clusters(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="no cluster"):
        find_cluster(DirectoryBucket(tmp_path), None)
    writer = BucketWriter(tmp_path)
    (tmp_path / "something else").mkdir()
    assert find_cluster(DirectoryBucket(tmp_path), None) == CLUSTER
    writer.put(
        "second/cluster.json", (tmp_path / CLUSTER / "cluster.json").read_bytes().replace(b"spark-test", b"x")
    )
    assert find_cluster(DirectoryBucket(tmp_path), None) == CLUSTER  # a damaged marker marks nothing
    with pytest.raises(InvalidOption, match=f"`cluster`: .* no cluster 'third', but {CLUSTER}"):
        find_cluster(DirectoryBucket(tmp_path), "third")


def test_directories_that_are_removed_during_a_list_are_passed_over(tmp_path: Path) -> None:
    folders = [tmp_path / f"c/names/t{number}" for number in range(2_000)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "id").touch()
    bucket = DirectoryBucket(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        removal = pool.submit(lambda: [shutil.rmtree(folder) for folder in reversed(folders)])
        while not removal.done():
            bucket.keys("c/names/")
        removal.result()
    assert bucket.keys("c/names/") == []


def test_a_directory_answers_whole_ranges_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"0123456789")
    bucket = open_bucket(StoreAddress(path=f"file://{tmp_path}"))
    assert bucket.read("a/b") == b"0123456789" and bucket.read("a/b", 3, 5) == b"34"
    assert bucket.keys("a/") == ["a/b"] and bucket.folders() == ["a"]
    with pytest.raises(CorruptObject):
        bucket.read("a/b", 8, 12)
    with pytest.raises(ObjectNotFound):
        bucket.read("a/c")
    for wrong in (f"{tmp_path}/nowhere", "gs://bucket"):
        with pytest.raises(InvalidOption):
            open_bucket(StoreAddress(path=wrong))


def test_missing_credentials_and_profiles_name_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    place = StoreAddress(path="s3://bucket/none", endpoint="http://127.0.0.1:1", region="eu")
    with pytest.raises(ObjectStoreError, match=r"s3://bucket/none/.*no credentials found. Set AWS_ACC"):
        open_bucket(place).folders()
    with pytest.raises(InvalidOption, match=r"`profile`: .*absent"):
        open_bucket(StoreAddress(path="s3://bucket/none", region="eu", profile="absent"))
    with pytest.raises(InvalidOption, match=r"`region` is invalid: .*'no region'"):
        open_bucket(StoreAddress(path="s3://bucket/none", region="no region"))
