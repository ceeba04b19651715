"""Partitions that are being moved, for which commands with a throttle wait."""

import time
from collections.abc import Collection
from contextlib import suppress
from http.client import HTTPException
from typing import TYPE_CHECKING

from tierlog.cli.errors import CliError
from tierlog.cli.output import print_status

if TYPE_CHECKING:
    from tierlog.cli.admin import AdminApi

RECONNECT_S = 0.5
THROTTLE_STAYS = (
    "The copies continue with their throttle. Once `tierlog partition list --moving` is empty, remove it "
    "with `tierlog partition unthrottle`."
)


def any_moves(api: "AdminApi", partitions: Collection[tuple[str, int]]) -> bool:
    """Whether one of the partitions, by topic and number, is being moved; one that does not exist is not."""
    rows = api.get("/v1/partitions", condition="moving")["partitions"]
    return any((row["topic"], row["partition"]) in partitions for row in rows)


def wait_until_moved(api: "AdminApi", partitions: Collection[tuple[str, int]]) -> None:
    """Check after each change of the metadata. If the node no longer responds, or this is interrupted, the
    throttle stays, and the user learns it. Raises CliError."""
    try:
        while not _has_seen_the_end(api, partitions):
            time.sleep(RECONNECT_S)
    except CliError as failure:
        failure.hint = f"{THROTTLE_STAYS} {failure.hint}"
        raise
    except KeyboardInterrupt:
        print_status(THROTTLE_STAYS)
        raise


def _has_seen_the_end(api: "AdminApi", partitions: Collection[tuple[str, int]]) -> bool:
    """Whether the moves have ended while one stream of changes lasted. It begins with an event."""
    # the metadata has not changed for minutes, or the node has stopped and may be back
    with suppress(OSError, HTTPException):
        for _ in api.changes():
            if not any_moves(api, partitions):
                return True
    return False
