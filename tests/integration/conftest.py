"""A real S3 server and a proxy in front of it, for the tests of a slow or failing object store."""

from collections.abc import AsyncIterator, Iterator

import pytest
import s3_servers
from s3_proxy import S3Proxy


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_servers.S3Server]:
    with s3_servers.running("versitygw", tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture
async def proxy(s3: s3_servers.S3Server) -> AsyncIterator[S3Proxy]:
    async with S3Proxy(s3).running() as proxy:
        yield proxy
