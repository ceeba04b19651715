"""Fixtures of several files: an S3 server and a proxy in front of it, and a Spark session with a bucket."""

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
import s3_servers
from s3_proxy import S3Proxy
from spark_bucket import BucketWriter
from spark_history import write_history
from spark_sessions import shared_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_servers.S3Server]:
    with s3_servers.running("versitygw", tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture
async def proxy(s3: s3_servers.S3Server) -> AsyncIterator[S3Proxy]:
    async with S3Proxy(s3).running() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def spark() -> "SparkSession":
    return shared_session()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> BucketWriter:
    """A bucket with the history of several topics."""
    return write_history(tmp_path_factory.mktemp("bucket"))
