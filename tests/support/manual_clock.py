"""A clock that a test moves by hand."""


class ManualClock:
    """Stands still until a test moves `now`, in milliseconds."""

    now = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now
