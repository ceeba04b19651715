"""Composition root of the gateway: builds its parts, serves until SIGTERM or SIGINT, and stops gracefully."""

import asyncio
import signal
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from tierlog.base.clock import SystemClock
from tierlog.base.process_limits import keep_malloc_small, raise_descriptor_limit, tune_interpreter
from tierlog.base.tasks import TaskGroup
from tierlog.client.cluster import parse_address
from tierlog.client.errors import AuthenticationFailed, ClientError
from tierlog.client.registry import RegistryAddress
from tierlog.rest.cluster import Cluster
from tierlog.rest.connection import ANONYMOUS
from tierlog.rest.formats import Values
from tierlog.rest.gateway import Gateway, Limits
from tierlog.rest.server import RestServer, allowed_hosts
from tierlog.rest.sessions import KafkaSecurity, Sessions

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
OnReady = Callable[[str], None]
_log = structlog.get_logger("tierlog.rest")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestOptions:
    """`bootstrap`: HOST:PORT, separated by commas. `tls`: of the listener for HTTP."""

    bootstrap: str
    host: str
    port: int
    security: KafkaSecurity = field(default_factory=KafkaSecurity)
    tls: ssl.SSLContext | None = None
    registry: RegistryAddress | None = None
    hosts: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)


def run(options: RestOptions, on_ready: OnReady) -> None:
    """Serve until SIGTERM or SIGINT. `on_ready` gets the URL. Raises OSError if the address cannot be used,
    and ClientError if `bootstrap` is not an address or no broker responds."""
    keep_malloc_small()
    raise_descriptor_limit()
    tune_interpreter()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(options, on_ready))


async def _serve(options: RestOptions, on_ready: OnReady) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    tasks = TaskGroup(lambda name, failure: _log.error("rest.task.failed", what=name, exc_info=failure))
    seeds = [parse_address(text) for text in options.bootstrap.split(",") if text.strip()]
    await _check_brokers(Cluster(seeds, ANONYMOUS, options.security.tls, tasks), options.security)
    sessions = Sessions(seeds, options.security, tasks)
    gateway = Gateway(
        sessions,
        Values(options.registry),
        options.limits,
        SystemClock(),
        tasks,
        allowed_hosts(options.host, options.hosts),
    )
    server = RestServer(gateway, options.tls)
    try:
        on_ready(await server.start(options.host, options.port))
        tasks.repeat("close idle sessions", sessions.sweep)
        await stopped.wait()
        _log.info("rest.stopping")
    finally:
        await server.close()
        sessions.close()
        await tasks.close()


async def _check_brokers(cluster: Cluster, security: KafkaSecurity) -> None:
    """Fail at the start if no broker responds. With logins, the gateway itself has none to try."""
    if security.has_login:
        return
    try:
        await cluster.metadata([])
    except AuthenticationFailed as failure:
        raise ClientError(f"the brokers want a login: set security.protocol: {failure}") from None
    finally:
        cluster.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
