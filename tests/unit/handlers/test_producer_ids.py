"""Producer ids: blocks from the controller, each id once, one request for a block at a time."""

import asyncio

import pytest

from tierlog.broker.transactions.producer_ids import ProducerIds
from tierlog.protocol.errors import ErrorCode, KafkaError


class Controller:
    """Allocates blocks of ten, interleaved with those of other brokers."""

    def __init__(self) -> None:
        self.blocks_requested = 0
        self.error = ErrorCode.NONE

    async def allocate(self) -> tuple[ErrorCode, int, int]:
        self.blocks_requested += 1
        first = 1_000 * self.blocks_requested
        await asyncio.sleep(0)
        return self.error, first, 10


async def test_each_id_of_a_block_is_returned_once() -> None:
    controller = Controller()
    ids = ProducerIds(controller.allocate)
    taken = [await ids.take() for _ in range(25)]
    assert taken == [*range(1_000, 1_010), *range(2_000, 2_010), *range(3_000, 3_005)]
    assert controller.blocks_requested == 3


async def test_concurrent_requests_share_a_block() -> None:
    controller = Controller()
    ids = ProducerIds(controller.allocate)
    taken = await asyncio.gather(*(ids.take() for _ in range(25)))
    assert len(set(taken)) == 25
    assert controller.blocks_requested == 3


async def test_client_gets_a_retriable_error_without_a_controller() -> None:
    controller = Controller()
    controller.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    ids = ProducerIds(controller.allocate)
    with pytest.raises(KafkaError) as refused:
        await ids.take()
    assert refused.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    controller.error = ErrorCode.NONE
    assert await ids.take() == 2_000
