"""Partitions that are being moved, for which commands with a throttle wait."""

from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierlog.cli.admin import AdminApi


def any_moves(api: "AdminApi", partitions: Collection[tuple[str, int]]) -> bool:
    """Whether one of the partitions, by topic and number, is being moved; one that does not exist is not."""
    rows = api.get("/v1/partitions", condition="moving")["partitions"]
    return any((row["topic"], row["partition"]) in partitions for row in rows)


def wait_until_moved(api: "AdminApi", partitions: Collection[tuple[str, int]]) -> None:
    """Check after each change of the metadata. If this is interrupted, the throttle stays."""
    while True:
        with suppress(TimeoutError):  # a slow move: the metadata has not changed for minutes
            for _ in api.changes():
                if not any_moves(api, partitions):
                    return
