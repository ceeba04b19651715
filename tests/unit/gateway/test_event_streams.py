"""Event streams of a node that stops."""

from typing import Any, cast

from tierlog.base.clock import SystemClock
from tierlog.broker.gateway.loop_lag import LoopLag
from tierlog.broker.gateway.node import FailureLog, Node
from tierlog.broker.handlers.stats import RequestStats
from tierlog.config.node import NodeSettings


def node() -> Node:
    return Node(NodeSettings(), cast(Any, None), RequestStats(), LoopLag(), FailureLog(), SystemClock())


async def test_stop_ends_the_streams() -> None:
    one = node()
    stream = one.follow()
    assert stream.empty()
    one.stop_serving()
    assert stream.get_nowait() is None


async def test_stream_that_begins_during_a_stop_ends_at_once() -> None:
    one = node()
    one.stop_serving()
    assert one.follow().get_nowait() is None
