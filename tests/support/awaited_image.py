"""Waits for an image of the metadata."""

import asyncio
from collections.abc import Callable

from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.publisher import Publisher


async def image_when(
    metadata: MetadataClient, predicate: Callable[[ClusterImage], bool], timeout_s: float = 30.0
) -> ClusterImage:
    """The first image that satisfies the predicate."""
    found: asyncio.Future[ClusterImage] = asyncio.get_running_loop().create_future()

    def check(_: ClusterImage, new: ClusterImage) -> None:
        if not found.done() and predicate(new):
            found.set_result(new)

    end = metadata.publish_to([Publisher("test", check)])
    try:
        async with asyncio.timeout(timeout_s):
            return await found
    finally:
        end()
