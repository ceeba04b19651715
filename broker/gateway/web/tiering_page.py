"""Page of tiering: the object store as each broker sees it, uploads that wait or fail, damage, scrubbers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tierlog.base.text import counted, duration, size
from tierlog.broker.diagnosis.evidence import Answers
from tierlog.broker.gateway.web import layout
from tierlog.broker.gateway.web.html import Child, Html, join, link, tag
from tierlog.broker.gateway.web.layout import action, badge, section, table

UPLOADS, STORE, BUCKET, LOGS, DAMAGED = (
    "/v1/tier/uploads",
    "/v1/tier/store",
    "/v1/tier/scrub",
    "/v1/scrub",
    "/v1/tier/damaged",
)
PATHS = (UPLOADS, STORE, BUCKET, LOGS, DAMAGED)
ROWS_MAX = 100
KINDS = {"closed": "good", "open": "bad"}


def tiering_page(found: Answers, node_id: int, may: Callable[[str], bool]) -> layout.Page:
    live = join(
        section("Object store and uploads", _brokers(found)),
        section("Uploads that wait or fail", _waiting(found)),
        section("Damaged ranges in the object store", _damaged(found)),
        section("Scrubbers", _scrubbers(found), _actions(found, node_id, may)),
        [tag("p", text, class_="note") for text in found.unread[:10]],
    )
    return layout.Page(title="Tiering", section="Tiering", live=live)


def _brokers(found: Answers) -> Html:
    uploads, rows = found.of(UPLOADS), list[Sequence[Child]]()
    for broker, store in sorted(found.of(STORE).items()):
        one = uploads.get(broker)
        state = badge(
            "available" if store["available"] else store["state"], KINDS.get(store["state"], "warn")
        )
        rows.append(
            (
                str(broker),
                join(state, " ", store["error"]),
                one["partitions"] if one else "-",
                one["uploading"] if one else "-",
                size(one["pending_bytes"]) if one else "-",
                duration(one["oldest_ms"]) if one else "-",
                one["failing"] if one else "-",
            )
        )
    headings = ("Broker", "Store", "#Tiered", "#Uploading", "#Waiting", "#Oldest", "#Failing")
    return table(headings, rows, caption="Partitions that each broker leads", empty="No broker responded.")


def _waiting(found: Answers) -> Html:
    waiting = [(broker, row) for broker, one in found.of(UPLOADS).items() for row in one["rows"]]
    waiting.sort(key=lambda item: (item[1]["last_error"] is None, -int(item[1]["pending_bytes"])))
    rows: list[Sequence[Child]] = [
        (
            link(f"{row['topic']}-{row['partition']}", layout.TOPIC, name=row["topic"]),
            str(broker),
            size(row["pending_bytes"]),
            duration(row["pending_age_ms"]),
            row["last_error"] or ("runs" if row["uploading"] else "waits"),
        )
        for broker, row in waiting[:ROWS_MAX]
    ]
    headings = ("Partition", "Broker", "#Bytes", "#Age", "Upload")
    return table(headings, rows, caption="Failures first", empty="No closed segment waits for its upload.")


def _damaged(found: Answers) -> Html:
    rows: list[Sequence[Child]] = [
        (
            link(f"{row['topic']}-{row['partition']}", layout.TOPIC, name=row["topic"]),
            str(broker),
            f"{row['first_offset']:,} to {row['end_offset'] - 1:,}",
            join(badge("missing" if row["missing"] else "damaged", "bad"), " ", tag("code", row["object"])),
        )
        for broker, one in found.of(DAMAGED).items()
        for row in one["damaged"][:ROWS_MAX]
    ]
    headings = ("Partition", "Found by", "Offsets", "Object")
    caption = counted(len(rows), "range")
    return table(headings, rows[:ROWS_MAX], caption=caption, empty="No broker has found damage.")


def _scrubbers(found: Answers) -> Html:
    logs, rows = found.of(LOGS), list[Sequence[Child]]()
    for broker, bucket in sorted(found.of(BUCKET).items()):
        log = logs.get(broker)
        rows.append(
            (
                str(broker),
                _progress(bucket),
                bucket["damaged"],
                _progress(log) if log else "-",
                len(log["damaged"]) if log else "-",
            )
        )
    headings = ("Broker", "Bucket", "#Damaged segments", "Local logs", "#Damaged ranges")
    return table(headings, rows, caption="Passes that check what is stored", empty="No broker responded.")


def _progress(one: Mapping[str, Any]) -> str:
    if one["progress"] < 1:
        return f"{100 * one['progress']:.0f} % of a pass"
    return counted(one["passes"], "pass", "passes")


def _actions(found: Answers, node_id: int, may: Callable[[str], bool]) -> Html | None:
    """This node's scrubbers: the admin API has them for each node."""
    if node_id not in found.of(BUCKET) or not may(BUCKET):
        return None
    return tag(
        "p",
        action("Check the bucket", f"Let broker {node_id} check its partitions in the bucket now?", BUCKET),
        action("Check local logs", f"Let broker {node_id} check all its local logs now?", LOGS),
        class_="buttons",
    )
