"""Node base: the parts that brokers and controller nodes share: log directories, metadata quorum, admin
server.

Base class of `Broker` (app) and `ControllerNode`; `run` (app) starts and stops them. Parts stop in the
reverse order of their start.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from pathlib import Path

import structlog
from aiohttp import web

from tierlog.base.tasks import TaskGroup, done_before
from tierlog.base.types import random_uuid
from tierlog.broker.audit.log import AuditLog
from tierlog.broker.audit.topic_queue import TopicQueue
from tierlog.broker.gateway.admin import admin_routes
from tierlog.broker.gateway.authentication import AdminAccess
from tierlog.broker.gateway.credentials import JwtTokens, ScramPasswords
from tierlog.broker.gateway.loop_lag import LoopLag
from tierlog.broker.gateway.node import FailureLog, Node
from tierlog.broker.gateway.request_guard import known_names
from tierlog.broker.gateway.roles import roles_of
from tierlog.broker.gateway.web.pages import web_routes
from tierlog.broker.handlers.stats import RequestStats
from tierlog.broker.platform import Platform, production_platform, quorum_tls
from tierlog.broker.security.distinguished_name import client_certificate
from tierlog.broker.security.jwks import key_set_of
from tierlog.broker.security.jwt_tokens import token_validator
from tierlog.broker.security.unknown_users import cluster_secret
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.broker.tracing import traces_of
from tierlog.config.admin_api import BASIC, BEARER, CERTIFICATE
from tierlog.config.node import BROKER, CONTROLLER, NodeSettings
from tierlog.config.principal_rules import parse_principal_rules
from tierlog.metadata.controller.sessions import BrokerSessions
from tierlog.metadata.quorum.api import member_urls, quorum_routes, raft_routes
from tierlog.metadata.quorum.balancing import BalanceSettings
from tierlog.metadata.quorum.node import TICK_MS, MetadataNode
from tierlog.metadata.quorum.observer import MetadataObserver
from tierlog.metadata.quorum.storage import MetadataStorage, StorageThread, ThreadedStorage
from tierlog.metadata.quorum.token_expiry import remove_expired_tokens
from tierlog.metadata.raft.settings import RaftSettings

_log = structlog.get_logger("tierlog")


class NodeFailed(Exception):
    """A vital part of the node has failed; only a restart helps."""


class NodeBase(ABC):
    """`failed` completes when the node cannot continue. `logs_are_open`: a start that is cancelled stops
    clean. `bootstrap`: "host:port" of the Kafka listener; empty if the node is no broker."""

    def __init__(self, settings: NodeSettings, platform: Platform | None = None) -> None:
        self.settings = settings
        self.platform = platform or production_platform(settings)
        self.files, self.clock, self.rng = self.platform.files, self.platform.clock, self.platform.rng
        self.stats = RequestStats()
        self.loop_lag = LoopLag()
        self.failures = FailureLog()
        self.bootstrap = self.admin_url = ""
        self._parts = contextlib.AsyncExitStack()
        self._stops_clean = True
        self.logs_are_open = self._serves = False

    async def start(self) -> None:
        """Returns when the node serves. Raises OSError (address, directory), DamagedLog, NodeFailed. All
        parts are stopped if it fails or is cancelled.
        """
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        try:
            if not await done_before(self.failed, self._start_parts()) or self.failed.done():
                raise NodeFailed(self.failed.result())
        except BaseException as why:
            await self.stop(clean=self.logs_are_open and isinstance(why, asyncio.CancelledError))
            raise
        self._serves = True
        _log.info("node.serving", bootstrap=self.bootstrap, admin=self.admin_url, node=self.settings.node_id)

    @abstractmethod
    async def _start_parts(self) -> None:
        """Start all parts in order; push the stop of each onto `_parts`."""

    async def stop(self, *, clean: bool = True) -> None:
        """Stop all parts in reverse order. `clean`: the next start needs no recovery."""
        self._stops_clean = clean and not self.failed.done()
        _log.info("node.stopping", node=self.settings.node_id)
        if self._stops_clean and self._serves:
            await self._leave()
        await self._parts.aclose()
        _log.info("node.stopped", node=self.settings.node_id)

    @abstractmethod
    async def _leave(self) -> None:
        """Hand leaderships over before a clean stop."""

    async def _start_metadata(self) -> None:
        settings = self.settings
        self.loop_lag.start()
        self._parts.callback(self.loop_lag.stop)
        self.directories = LogDirectories([Path(path) for path in settings.log_dirs], self.files, self.rng)
        self.identity = self.directories.claim(
            settings.node_id, settings.cluster_id, metadata=settings.metadata_directory
        )
        self._parts.callback(self.directories.release)

        metadata_tasks = TaskGroup(self._fatal)
        self._parts.push_async_callback(metadata_tasks.close)
        self.metadata, raft = await self._build_metadata(metadata_tasks)
        self.traces = traces_of(settings, self.identity.cluster_id, self.rng)
        if self.traces is not None:
            self._parts.push_async_callback(self.traces.close)
            self.metadata.tracer = self.traces
        self.audit = self._open_audit_log(metadata_tasks)
        self.admin_node = Node(
            settings, self.metadata, self.stats, self.loop_lag, self.failures, self.clock, self.audit
        )
        api = [*admin_routes(self.admin_node), *quorum_routes(self.metadata)]
        tls = quorum_tls(settings)
        routes = [*api, *web_routes(self.admin_node, api, tls), *raft]
        self.admin = self.platform.admin_server(
            routes, tls, self._names, self._admin_access(metadata_tasks), self.audit
        )
        self._parts.push_async_callback(self.admin.close)
        self.admin_url = await self.admin.start(*settings.admin)
        metadata_tasks.spawn("certificates of the admin server", self.admin.keep_certificates())
        if isinstance(self.metadata, MetadataNode):
            self.metadata.url = settings.voters.get(settings.node_id, self.admin_url)

        self._parts.push_async_callback(self._stop_metadata)
        await self.metadata.start()
        if isinstance(self.metadata, MetadataNode):
            interval_s = settings.delegation_token_expiry_check_interval_ms / 1000
            removal = remove_expired_tokens(self.metadata, self.clock, interval_s)
            metadata_tasks.spawn("expired delegation tokens", removal)

    def _open_audit_log(self, tasks: TaskGroup) -> AuditLog | None:
        settings = self.settings
        if not settings.audit_log_dir:
            return None
        topic = settings.audit_log_topic if BROKER in settings.process_roles else ""
        queue = TopicQueue(topic) if topic else None
        audit = AuditLog(settings, settings.node_id, self.clock, queue)
        self._parts.push_async_callback(audit.close)
        tasks.repeat("audit log", audit.collapse)
        return audit

    def _admin_access(self, tasks: TaskGroup) -> AdminAccess | None:
        """The users of the admin API; None: everyone may use it."""
        settings = self.settings
        ways = settings.admin_authentication
        if not ways:
            return None
        access = AdminAccess(
            roles=roles_of(settings),
            nodes_have_certificates=bool(settings.quorum_files),
            audit=self.audit,
            knows=lambda user: user in self.metadata.image.scram_users,
        )
        if BASIC in ways:
            access.passwords = ScramPasswords(
                lambda: self.metadata.image.scram_users, cluster_secret(settings, self.identity.cluster_id)
            )
        if BEARER in ways:
            keys = key_set_of(settings)
            tasks.spawn("keys of the admin API's tokens", keys.keep_fresh())
            access.tokens = JwtTokens(token_validator(settings, keys), self.clock)
        if CERTIFICATE in ways:
            rules = parse_principal_rules(settings.ssl_principal_mapping_rules)
            now_ms = self.clock.now_ms
            access.certificate = lambda one: client_certificate(one, rules, now_ms()).principal
        return access

    def _names(self) -> set[str]:
        """Host names that requests to the admin server may use."""
        return known_names(self.settings, self.metadata.image, member_urls(self.metadata))

    async def _build_metadata(
        self, tasks: TaskGroup
    ) -> tuple[MetadataNode | MetadataObserver, list[web.RouteDef]]:
        """A voter and its routes, or an observer for a broker that is no controller."""
        settings, cluster_id = self.settings, self.identity.cluster_id
        secret = settings.controller_quorum_secret.encode()
        self.peers = peers = self.platform.peers(settings, cluster_id, tasks)
        if CONTROLLER not in settings.process_roles and peers is not None:
            voters = settings.voters
            session_ms = settings.broker_session_timeout_ms
            observer = MetadataObserver(
                settings.node_id, voters, self.clock, tasks, cluster_id, peers=peers, session_ms=session_ms
            )
            return observer, []
        storage = self._metadata_storage()
        self._parts.push_async_callback(storage.close)
        node = MetadataNode(
            settings.node_id,
            settings.voters,
            storage,
            await storage.open(),
            self.clock,
            self.rng,
            tasks,
            cluster_id,
            sessions=BrokerSessions(settings.broker_session_timeout_ms) if secret else None,
            balance=_balance(settings),
            peers=peers,
            snapshot_entries=self.platform.snapshot_entries,
            keep_entries=self.platform.keep_entries,
            settings=RaftSettings.from_durations(
                tick_ms=TICK_MS,
                election_ms=settings.controller_quorum_election_timeout_ms,
                quorum_ms=settings.controller_quorum_fetch_timeout_ms,
            ),
        )
        return node, raft_routes(node, secret) if secret else []

    def _metadata_storage(self) -> ThreadedStorage:
        settings, directory = self.settings, self.settings.metadata_directory
        storage = MetadataStorage(
            self.files,
            directory,
            cluster_id=self.identity.cluster_id,
            node_id=settings.node_id,
            new_directory_id=random_uuid(self.rng),
            reserve_bytes=settings.metadata_reserve_bytes,
            on_disk_full=lambda: self.directories.mark_full_beside(directory),
        )
        return ThreadedStorage(storage, StorageThread(self.clock, None, f"metadata-{settings.node_id}"))

    async def _stop_metadata(self) -> None:
        node = self.metadata
        if self._stops_clean and isinstance(node, MetadataNode) and node.is_leader and len(node.voters) > 1:
            timeout_s = self.settings.controller_quorum_election_timeout_ms / 1000  # what an election costs
            handed_over = await node.membership.hand_over(timeout_s)
            _log.info("quorum.leadership.transferred" if handed_over else "quorum.leadership.kept")
        await node.stop()

    def _report(self, name: str, failure: BaseException) -> None:
        self.failures.report(name, failure)

    def _fatal(self, name: str, failure: BaseException) -> None:
        _log.critical("node.failing", what=name, exc_info=failure)
        if not self.failed.done():
            self.failed.set_result(f"{name}: {failure}")


def _balance(settings: NodeSettings) -> BalanceSettings | None:
    if not settings.auto_leader_rebalance_enable:
        return None
    return BalanceSettings(
        interval_ms=settings.leader_imbalance_check_interval_seconds * 1000,
        percent=settings.leader_imbalance_per_broker_percentage,
    )
