"""Pages of consumer groups: the list with its search, and one group with its lag over time.

Each broker answers for the groups that it coordinates (`GET /v1/groups`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tierlog.base.text import counted
from tierlog.broker.diagnosis.evidence import Answers
from tierlog.broker.gateway.web import layout
from tierlog.broker.gateway.web.drawings import chart
from tierlog.broker.gateway.web.html import Child, Html, join, link, tag
from tierlog.broker.gateway.web.layout import badge, facts, pager, section, table

GROUPS_PER_PAGE = 50
PAGES_MAX = 20
"""Each broker is asked for all groups up to the end of the page."""

ROWS_MAX = 200
KINDS = {"Stable": "good", "Empty": "", "Dead": "bad"}
HOW_FAR = (
    "The coordinator keeps 120 samples in memory, at least 30 s apart: one hour or more. It takes one when "
    "its metrics or these pages are read, so without a Prometheus that scrapes it only while a page is open."
)


def groups_page(found: Answers, search: str, page: int) -> layout.Page:
    documents = [one for some in found.documents.values() for one in some.values()]
    total = sum(int(one["total"]) for one in documents)
    groups = sorted((row for one in documents for row in one["groups"]), key=lambda row: str(row["group"]))
    pages = max(1, -(-total // GROUPS_PER_PAGE))
    reachable = min(pages, PAGES_MAX)
    page = min(max(page, 1), reachable)
    shown = groups[(page - 1) * GROUPS_PER_PAGE : page * GROUPS_PER_PAGE]
    rows: list[Sequence[Child]] = [
        (
            link(row["group"], layout.GROUP, name=row["group"]),
            row["type"] or "-",
            badge(row["state"] or "unknown", KINDS.get(row["state"], "warn")),
            "-" if row["lag"] is None else row["lag"],
            _trend(row["trend"], row["lag"]),
        )
        for row in shown
    ]
    notes = [*found.unread]
    left_out = sum(int(one["left_out_partitions"]) for one in documents)
    if left_out:
        notes.append(f"{left_out:,} partitions have no lag: raise group.lag.metrics.max.partitions")
    if pages > reachable:
        notes.append(f"The first {reachable * GROUPS_PER_PAGE:,} groups are shown: search for others.")
    if any(one["error"] for one in documents):
        notes.append("Some groups are still being loaded.")
    live = join(
        table(
            ("Group", "Protocol", "State", "#Lag", "Trend"),
            rows,
            caption=counted(total, "group"),
            empty="No group matches.",
        ),
        pager(layout.GROUPS, page, reachable, search=search),
        [tag("p", text, class_="note") for text in notes[:10]],
    )
    form = layout.search_form(layout.GROUPS, "Part of the name", search)
    return layout.Page(title="Consumer groups", section="Groups", fixed=form, live=live)


def _trend(first: Sequence[int] | None, lag: int | None) -> str:
    """`first`: age in milliseconds and lag of the oldest sample."""
    if first is None or lag is None:
        return "-"
    change, minutes = lag - first[1], first[0] // 60_000
    return f"{change:+,} in {minutes} min" if minutes else "-"


def group_page(name: str, view: Mapping[str, Any], coordinator: int) -> layout.Page:
    partitions, members = view["partitions"], view["members"]
    lags = [row["lag"] for row in partitions if row["lag"] is not None]
    live = join(
        facts(
            {
                "State": badge(view["state"], KINDS.get(view["state"], "warn")),
                "Protocol": view["type"] or "-",
                "Coordinator": f"broker {coordinator}",
                "Lag": sum(lags) if lags else "-",
            }
        ),
        section("Lag over time", chart(view["history"], "record"), tag("p", HOW_FAR, class_="faint")),
        section("Partitions", _partitions(partitions, view["partition_count"])),
        section("Members", _members(members, view.get("member_count", len(members)))),
    )
    return layout.Page(title=f"Group {name}", section="Groups", live=live)


def _partitions(partitions: Sequence[Mapping[str, Any]], count: int) -> Html:
    rows: list[Sequence[Child]] = [
        (
            link(row["topic"], layout.TOPIC, name=row["topic"]),
            str(row["partition"]),
            row["committed_offset"],
            "-" if row["lag"] is None else row["lag"],
        )
        for row in partitions[:ROWS_MAX]
    ]
    caption = f"{len(rows):,} of {counted(count, 'partition')}, the largest lag first"
    headings = ("Topic", "Partition", "#Committed", "#Lag")
    return table(headings, rows, caption=caption, empty="The group has committed no offset.")


def _members(members: Sequence[Mapping[str, Any]], count: int) -> Html:
    rows: list[Sequence[Child]] = [
        (one["client_id"], one["host"], tag("code", one["member_id"])) for one in members[:ROWS_MAX]
    ]
    caption = f"{len(rows):,} of {counted(count, 'member')}"
    return table(("Client", "Host", "Member"), rows, caption=caption, empty="The group has no member.")
