"""Upload of a topic by the leaders of its partitions, for `tierlog tier flush`.

Each leader responds once all its partitions are uploaded. While they upload, the command prints how much is
left, and the errors of the store. If a leadership moves, the new leader gets the request.
"""

import threading
import time
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any

from tierlog.cli.admin import (
    HEALTH_HINT,
    PROBE_TIMEOUT_S,
    AdminApi,
    NoResponse,
    is_tiered,
    not_tiered,
    topic_of,
)
from tierlog.cli.errors import CliError, ExitCode
from tierlog.cli.output import listed, print_status, size

PROGRESS_INTERVAL_S = 5.0
METADATA_PAUSE_S = 0.5
"""After a leadership has moved: until the contacted node knows the new leader."""

CONFLICT = 409
ERRORS_SHOWN = 3

Row = dict[str, Any]


def flush(api: AdminApi, topic: str, timeout_s: float) -> list[Row]:
    """Upload the topic. Returns the rows of GET /v1/tier/status. Raises CliError if it is not tiered, a
    partition has no leader, or the upload fails or does not end in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        cluster = api.get("/v1/cluster")
        found = topic_of(cluster, topic)
        if not is_tiered(found):
            raise not_tiered(topic)
        leaders = {row["partition"]: row["leader"] for row in found["partitions"]}
        registered = {one["id"] for one in cluster["brokers"]} & set(leaders.values())
        left_s = max(deadline - time.monotonic(), 1.0)
        brokers = [AdminApi(api.of_broker(one, cluster).url, timeout_s=left_s) for one in sorted(registered)]
        try:
            rows = _upload(brokers, topic, timeout_s)
        except CliError as failure:
            if failure.status != CONFLICT:
                raise
            time.sleep(METADATA_PAUSE_S)
            newest = topic_of(api.get("/v1/cluster"), topic)["partitions"]
            if {row["partition"]: row["leader"] for row in newest} == leaders:
                failure.hint = f"See `tierlog tier status {topic}` and `tierlog topic describe {topic}`."
                raise
            continue
        done = {row["partition"] for row in rows}
        if left := [f"{topic}-{one}" for one in sorted(leaders) if one not in done]:
            raise CliError(f"not uploaded, because no broker leads it: {listed(left)}", hint=HEALTH_HINT)
        return sorted(rows, key=lambda row: int(row["partition"]))


def _upload(leaders: list[AdminApi], topic: str, timeout_s: float) -> list[Row]:
    """The rows of all leaders. Raises the first failure, without waiting for the other leaders."""
    outcomes: SimpleQueue[Mapping[str, Any] | CliError] = SimpleQueue()

    def ask(leader: AdminApi) -> None:
        try:
            outcomes.put(leader.post("/v1/tier/flush", {"topic": topic}))
        except CliError as failure:
            outcomes.put(failure)
        except Exception as failure:  # while the response is read: its node has stopped
            what = f"{leader.url} ended its response: {failure or type(failure).__name__}"
            outcomes.put(CliError(what, hint=HEALTH_HINT, code=ExitCode.UNREACHABLE))

    for leader in leaders:  # daemons, so that Ctrl-C does not wait for them
        threading.Thread(target=ask, args=(leader,), name=f"flush by {leader.url}", daemon=True).start()
    rows: list[Row] = []
    pending, printed = len(leaders), ""
    while pending:
        try:
            outcome = outcomes.get(timeout=PROGRESS_INTERVAL_S)
        except Empty:
            if (progress := _progress(leaders, topic)) not in ("", printed):
                print_status(progress)
                printed = progress
            continue
        if isinstance(outcome, NoResponse):
            raise CliError(
                f"topic {topic} is not completely uploaded after {timeout_s:g} s",
                hint=f"The uploads continue: `tierlog tier status {topic}` shows what is left, and errors.",
            )
        if isinstance(outcome, CliError):
            raise outcome
        rows += outcome["partitions"]
        pending -= 1
    return rows


def _progress(leaders: list[AdminApi], topic: str) -> str:
    """Progress line. Empty if no leader responds."""
    rows: list[Row] = []
    for leader in leaders:
        try:
            status = AdminApi(leader.url, timeout_s=PROBE_TIMEOUT_S).get("/v1/tier/status", topic=topic)
        except CliError:
            continue
        rows += status["partitions"]
    if not rows:
        return ""
    left = size(sum(row["pending_bytes"] for row in rows))
    errors = [f"{topic}-{row['partition']}: {row['last_error']}" for row in rows if row["last_error"]]
    more = f"; {listed(errors, ERRORS_SHOWN)}" if errors else ""
    return f"waiting for the upload of {topic}: {left} left{more}"
