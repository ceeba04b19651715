"""Automatic topic creation: creates topics that clients request by name (AutoTopicCreationManager in Kafka).

Metadata returns UNKNOWN_TOPIC_OR_PARTITION at once, and the topic is created in the background; clients retry
and find it. The response must not contain the new topic: a client that describes a topic it has just deleted
would think that the deletion failed. A failure is only logged; the next request tries again.

Called by the Metadata handler.
"""

from collections.abc import Iterable

import structlog

from tierlog.broker.handlers.context import RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.mutations import MutationQuota
from tierlog.metadata.controller.commands import CreateTopics, NewTopic, TopicOutcome
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.protocol.errors import ErrorCode

IN_FLIGHT_MAX = 1_000
"""Maximum number of topics being created. A request may name 65,000 (ELEMENTS_MAX); clients request the
others again."""
TOPICS_PER_COMMAND = 100  # one command is decided in one turn of the event loop
LOG_EVERY_MS = 10_000  # between two warnings: clients repeat a failing request several times a second

_log = structlog.get_logger("tierlog")


class AutoTopicCreation:
    """Creates topics in the background. A name whose creation is in progress is not submitted again."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps
        self._in_flight: set[str] = set()
        self._quiet_until_ms = 0

    def start(self, context: RequestContext, names: Iterable[str]) -> int:
        """Start to create the topics that the client's mutation quota (KIP-599) and IN_FLIGHT_MAX allow.

        Returns throttle_time_ms for the response.
        """
        quota = MutationQuota(self._deps, context, strict_from=0)
        partitions = self._deps.settings.num_partitions
        allowed: list[str] = []
        for name in names:
            if len(self._in_flight) >= IN_FLIGHT_MAX:
                break
            if name in self._in_flight or (quota.is_set and not quota.allow(partitions)):
                continue
            self._in_flight.add(name)
            allowed.append(name)
        if allowed:
            self._deps.tasks.spawn("create topics", self._create_all(allowed))
        return quota.throttle_time_ms

    async def _create_all(self, names: list[str]) -> None:
        """Create the topics, TOPICS_PER_COMMAND at a time. Failures are logged."""
        remaining = names
        try:
            while remaining:
                batch = remaining[:TOPICS_PER_COMMAND]
                try:
                    self._log_failures(await self._create(batch))
                except MetadataUnavailable as unavailable:
                    self._log_failure(batch[0], str(unavailable))
                remaining = remaining[TOPICS_PER_COMMAND:]
                self._in_flight.difference_update(batch)
        finally:
            self._in_flight.difference_update(remaining)

    async def _create(self, names: list[str]) -> tuple[TopicOutcome, ...]:
        """Raises MetadataUnavailable."""
        command = CreateTopics(
            topics=tuple(NewTopic(name=name) for name in names),
            default_partitions=self._deps.settings.num_partitions,
            default_replication_factor=self._deps.settings.default_replication_factor,
        )
        return (await self._deps.metadata.submit(command)).topics

    def _log_failures(self, outcomes: tuple[TopicOutcome, ...]) -> None:
        for outcome in outcomes:
            if outcome.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                self._log_failure(outcome.name, f"{outcome.error.name}: {outcome.message}")

    def _log_failure(self, topic: str, error: str) -> None:
        """Log a warning, unless one was logged less than LOG_EVERY_MS ago."""
        now_ms = self._deps.clock.monotonic_ms()
        if now_ms >= self._quiet_until_ms:
            self._quiet_until_ms = now_ms + LOG_EVERY_MS
            _log.warning("topic.auto_creation.failed", topic=topic, error=error)
