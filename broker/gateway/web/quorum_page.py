"""Page of the metadata quorum: leader, members, how far they are, and the builds of the nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

from tierlog.base.text import duration
from tierlog.broker.gateway.web import layout
from tierlog.broker.gateway.web.html import Child, Html, join, tag
from tierlog.broker.gateway.web.layout import badge, facts, section, table
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.status import NodeStatus, ObserverStatus, PeerStatus

ROWS_MAX = 200


def quorum_page(
    own: NodeStatus | ObserverStatus,
    leader: NodeStatus | None,
    image: ClusterImage,
    versions: Mapping[str, Any],
    now_ms: int,
) -> layout.Page:
    """`leader`: the leader's view; None if no leader responds. `versions`: GET /v1/versions of this node."""
    status = own if leader is None else leader
    known: dict[str, Child] = {
        "Leader": badge("none", "bad") if leader is None else f"node {leader.node_id}",
        "This node": own.role,
        "Applied here": own.applied_index,
        "Format version": image.format_version,
    }
    if isinstance(status, NodeStatus):
        known |= {"Term": status.term, "Committed": status.commit_index, "Last entry": status.last_index}
    warning = None
    if leader is None:
        warning = tag(
            "p",
            "No leader responds to this node. Topics and settings cannot change: see ",
            tag("code", "docs/runbooks/lost-majority.md"),
            ". This page shows what the node last knew.",
            class_="note bad",
        )
    live = join(warning, facts(known), _members(status, now_ms), section("Versions", _versions(versions)))
    return layout.Page(title="Quorum", section="Quorum", live=live)


def _members(status: NodeStatus | ObserverStatus, now_ms: int) -> Html:
    if not isinstance(status, NodeStatus):
        rows: list[Sequence[Child]] = [
            (str(one), "voter", url, "-", "-") for one, url in sorted(status.voters.items())
        ]
    else:
        everyone = [*status.members, *status.observers][:ROWS_MAX]
        rows = [_member(status, one, now_ms) for one in everyone]
    headings = ("Node", "Member", "Address", "#Lag", "Last contact")
    caption = "The lag is in entries of the metadata log"
    return section("Members", table(headings, rows, caption=caption, empty="No member is known."))


def _member(status: NodeStatus, one: PeerStatus, now_ms: int) -> Sequence[Child]:
    is_leader = one.node_id == status.leader
    kind = "voter" if one.voter else ("observer" if one in status.observers else "learner")
    heard = "-" if one.last_heard_ms is None else f"{duration(max(0, now_ms - one.last_heard_ms))} ago"
    return (
        str(one.node_id),
        join(badge(kind), badge("leader", "good") if is_leader else None),
        one.url or "-",
        "-" if one.lag is None else one.lag,
        "this is the leader" if is_leader else heard,
    )


def _versions(versions: Mapping[str, Any]) -> Html:
    own = {"node_id": versions.get("node_id"), **versions}
    rows: list[Sequence[Child]] = [
        (str(one["node_id"]), one["version"], tag("code", one["commit"] or "-"), _span(one["formats"]))
        for one in (own, *versions.get("peers", ()))
        if one.get("version")
    ]
    problems = [
        tag("p", f"node {one['node_id']}: {one['why']}", class_="note bad")
        for one in versions.get("problems", ())
    ]
    headings = ("Node", "Version", "Commit", "Formats")
    listed = table(headings, rows[:ROWS_MAX], caption="As announced to this node", empty="-")
    return join(problems, listed)


def _span(numbers: Sequence[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}"
