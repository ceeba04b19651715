"""`tierlog txn list` and `describe` while a coordinator loads its partition, or moves."""

from types import SimpleNamespace
from typing import Any

import pytest

from tierlog.cli import transactions
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import describe_transactions, find_coordinator, list_transactions


class Coordinator:
    """A KafkaClient of one broker, whose first answers are these errors."""

    timeout_s = 10.0

    def __init__(self, *errors: ErrorCode) -> None:
        self.errors = list(errors)

    def metadata(self, names: list[str]) -> Any:
        return SimpleNamespace(brokers=[SimpleNamespace(node_id=1)])

    def silent(self, node_ids: list[int]) -> dict[int, str]:
        return {}

    def call(self, request: Any, node_id: int | None = None) -> Any:
        if isinstance(request, find_coordinator.FindCoordinatorRequest):
            return find_coordinator.FindCoordinatorResponse(
                coordinators=[find_coordinator.Coordinator(key="a", node_id=1)]
            )
        error = self.errors.pop(0) if self.errors else ErrorCode.NONE
        if isinstance(request, list_transactions.ListTransactionsRequest):
            state = list_transactions.TransactionState(transactional_id="a", transaction_state="Empty")
            states = [] if error else [state]
            return list_transactions.ListTransactionsResponse(error_code=error, transaction_states=states)
        state = describe_transactions.TransactionState(
            error_code=error, transactional_id="a", transaction_state="Empty"
        )
        return describe_transactions.DescribeTransactionsResponse(transaction_states=[state])


@pytest.mark.parametrize(
    "error", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR], ids=lambda code: code.name
)
def test_transactions_are_shown_once_their_coordinator_has_loaded(error: ErrorCode) -> None:
    client: Any = Coordinator(error)
    assert [row["transactional_id"] for row in transactions.rows(client)] == ["a"]
    client = Coordinator(error)
    assert transactions.describe(client, "a")["state"] == "Empty"
