"""Pure core of the transaction coordinator, kept in `__transaction_state`."""
