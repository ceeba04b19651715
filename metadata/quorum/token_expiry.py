"""Removal of expired delegation tokens (KIP-48) by the active controller. Called by the node base on every
voter."""

import asyncio

import structlog

from tierlog.base.clock import Clock
from tierlog.metadata.controller.commands import RemoveExpiredTokens
from tierlog.metadata.quorum.node import MetadataNode
from tierlog.metadata.quorum.peers import MetadataUnavailable

_log = structlog.get_logger("tierlog.metadata")


async def remove_expired_tokens(node: MetadataNode, clock: Clock, interval_s: float) -> None:
    """Repeat the removal for as long as the node runs. Logins by expired tokens are refused earlier."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            removed = await remove_once(node, clock.now_ms())
        except MetadataUnavailable:
            continue  # the next round, or another controller
        if removed:
            _log.info("token.expired.removed", tokens=removed)


async def remove_once(node: MetadataNode, now_ms: int) -> int:
    """How many tokens were removed. Raises MetadataUnavailable."""
    removed = 0
    while node.is_leader:
        expired = _expired(node, now_ms)
        if not expired:
            break
        await node.submit(RemoveExpiredTokens(now_ms=now_ms))
        removed += expired - _expired(node, now_ms)
    return removed


def _expired(node: MetadataNode, now_ms: int) -> int:
    return sum(token.is_expired(now_ms) for token in node.image.tokens.values())
