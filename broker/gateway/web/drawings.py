"""Drawings in SVG: a partition's tiers, and a series over time. Colours are classes of the style sheet,
because the pages allow no inline style."""

from collections.abc import Sequence
from typing import NamedTuple

from tierlog.base.text import counted
from tierlog.broker.gateway.web.html import Html, join, tag

WIDTH = 1000
VISIBLE = 6
"""Least width of offsets that exist: the active segment is a small part of a long history."""

CHART_WIDTH, CHART_HEIGHT = 600, 160
REMOTE, BOTH, LOCAL = "remote", "both", "local"
MEANINGS = {LOCAL: "local disk only", BOTH: "local disk and object store", REMOTE: "object store only"}


class Tiers(NamedTuple):
    """Offsets of a partition; ends are exclusive. `remote_end`: None without remote data. `local_start`: None
    if the leader did not respond."""

    log_start: int
    remote_end: int | None
    local_start: int | None
    log_end: int


def spans(tiers: Tiers) -> list[tuple[str, int, int]]:
    """(tier, start, end) of the offsets in each tier, as in the picture of the demo."""
    start, end = tiers.log_start, tiers.log_end
    local = end if tiers.local_start is None else min(max(tiers.local_start, start), end)
    remote = min(max(tiers.remote_end or start, start), end)
    first, second = min(local, remote), max(local, remote)
    middle = BOTH if local < remote else ""  # a gap only while a tier starts
    parts = [(REMOTE, start, first), (middle, first, second), (LOCAL, second, end)]
    return [(tier, begins, ends) for tier, begins, ends in parts if tier and begins < ends]


def tier_bar(tiers: Tiers) -> Html:
    """A bar from the log start to the log end, each tier in its colour."""
    found, total = spans(tiers), max(tiers.log_end - tiers.log_start, 1)
    if not found:
        return tag("span", "empty", class_="faint")
    widths = [max(VISIBLE, WIDTH * (end - start) // total) for _, start, end in found]
    widths[widths.index(max(widths))] -= sum(widths) - WIDTH
    rects, at = [], 0
    for (tier, start, end), width in zip(found, widths, strict=True):
        title = tag("title", f"{MEANINGS[tier]}: offsets {start:,} to {end - 1:,}")
        rects.append(tag("rect", title, x=at, y=0, width=width, height=20, class_=tier))
        at += width
    words = ", ".join(f"{MEANINGS[tier]} {start:,} to {end - 1:,}" for tier, start, end in found)
    return tag(
        "svg",
        rects,
        viewBox=f"0 0 {WIDTH} 20",
        preserveAspectRatio="none",
        class_="tiers",
        role="img",
        aria_label=f"Offsets: {words}",
    )


def legend() -> Html:
    entries = [tag("span", tag("span", "", class_=f"key {tier}"), name) for tier, name in MEANINGS.items()]
    return tag("p", entries, class_="legend")


def chart(series: Sequence[tuple[int, int | None]], noun: str) -> Html:
    """A line over time. `series`: time in milliseconds and value; None: no value at that time."""
    values = [value for _, value in series if value is not None]
    if len(values) < 2:
        return tag("p", "There are no two samples yet.", class_="note")
    begin, end, top = series[0][0], series[-1][0], max(*values, 1)
    lines, points = [], list[str]()
    for at, value in [*series, (end, None)]:
        if value is None:
            if points:
                lines.append(tag("polyline", points=" ".join(points), class_="line"))
            points = []
        else:
            x = CHART_WIDTH * (at - begin) / max(end - begin, 1)
            y = CHART_HEIGHT - (CHART_HEIGHT - 4) * value / top
            points.append(f"{x:.1f},{y:.1f}")
    minutes = (end - begin) // 60_000
    words = f"{counted(values[0], noun)} {minutes} minutes ago, {values[-1]:,} now, at most {max(values):,}"
    drawing = tag(
        "svg",
        [tag("line", x1=0, x2=CHART_WIDTH, y1=y, y2=y, class_="grid") for y in (4, 82, CHART_HEIGHT)],
        lines,
        viewBox=f"0 0 {CHART_WIDTH} {CHART_HEIGHT}",
        preserveAspectRatio="none",
        class_="chart",
        role="img",
        aria_label=words,
    )
    axis = tag("p", tag("span", f"{minutes} min ago"), tag("span", "now"), class_="axis")
    return join(tag("p", f"{top:,}", class_="top"), drawing, axis, tag("p", words, class_="note"))
