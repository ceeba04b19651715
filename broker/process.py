"""The process around a node: signals, logging, event loop, garbage collector. Called by the command line."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable

import structlog

from tierlog.broker.app import Broker, NodeFailed
from tierlog.broker.ports import descriptors
from tierlog.broker.ports.malloc import keep_malloc_small
from tierlog.broker.ports.tasks import done_before
from tierlog.broker.settings.node import NodeSettings

OnReady = Callable[[str, str], None]
"""Called with "host:port" of the Kafka listener and the URL of the admin server, as soon as both serve."""

GC_THRESHOLD = 50_000
"""Allocations between two collections of the youngest generation: requests leave hardly any cycles behind."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_log = structlog.get_logger("tierlog")


def run(settings: NodeSettings, on_ready: OnReady | None = None) -> None:
    """Runs a node until SIGTERM or SIGINT, whether it serves by then or not, and stops it clean; raises what
    `Broker.start` raises.
    """
    configure_logging()
    keep_malloc_small()
    if (most := descriptors.raise_limit()) >= 0 and most < descriptors.LEAST:
        raise NodeFailed(f"RLIMIT_NOFILE is {most}: a node needs {descriptors.LEAST} descriptors at least")
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, on_ready))


async def _serve(settings: NodeSettings, on_ready: OnReady | None) -> None:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if not stopped.done():
            stopped.set_result(None)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    broker = Broker(settings)
    if not await done_before(stopped, broker.start()):
        _log.info("stopped before it served", node=settings.node_id)
        return
    gc.collect()
    gc.freeze()  # what start-up made stays for good: no collection looks at it again
    if on_ready is not None:
        on_ready(broker.bootstrap, broker.admin_url)
    broker.failed.add_done_callback(lambda _: stop())
    await stopped
    await broker.stop()
    if broker.failed.done():
        raise NodeFailed(broker.failed.result())


def configure_logging() -> None:
    """One line per event on standard error; standard output belongs to the command line."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.ExceptionRenderer(),
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
