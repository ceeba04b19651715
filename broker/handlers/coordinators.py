"""Handlers of the coordinators: groups, committed offsets, transactions and their markers."""

from typing import Any

from tierlog.broker.coordinators.shards import Shards
from tierlog.broker.groups.group_service import GroupService
from tierlog.broker.handlers.consumer_groups import consumer_group_handlers
from tierlog.broker.handlers.context import Handler
from tierlog.broker.handlers.find_coordinator import (
    GROUP_KEY_TYPE,
    TRANSACTION_KEY_TYPE,
    find_coordinator_handler,
)
from tierlog.broker.handlers.groups import group_handlers
from tierlog.broker.handlers.transactional_offsets import txn_offset_commit_handler
from tierlog.broker.handlers.transactions import transaction_handlers
from tierlog.broker.handlers.txn_markers import MarkerWriter
from tierlog.broker.transactions.transaction_service import TransactionService
from tierlog.protocol.api import BY_NAME


def coordinator_handlers(
    groups: GroupService, transactions: TransactionService, markers: MarkerWriter
) -> dict[int, Handler]:
    """API key -> handler."""
    shards: dict[int, Shards[Any]] = {
        GROUP_KEY_TYPE: groups.shards,
        TRANSACTION_KEY_TYPE: transactions.shards,
    }
    named: dict[str, Handler] = {
        "FindCoordinator": find_coordinator_handler(shards),
        "TxnOffsetCommit": txn_offset_commit_handler(groups, transactions.verifier),
        "WriteTxnMarkers": markers.handle,
    }
    return {
        **{BY_NAME[name].key: handler for name, handler in named.items()},
        **group_handlers(groups),
        **consumer_group_handlers(groups),
        **transaction_handlers(transactions, groups.shards),
    }
