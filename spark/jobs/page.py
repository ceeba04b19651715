"""Page of plots: one HTML file without scripts, styles or pictures from elsewhere. Pure.

The plots are SVG, so that jobs need no plotting library. Used by `audit`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Any

WIDTH, HEIGHT, MARGIN, LABEL = 900, 260, 50, 220
ROW = 18
BARS_MAX = 60
COLORS = ("#2a6fbb", "#d1603d", "#3d9b62", "#8a5ab5", "#b59a2a", "#5b6770")
_STYLE = (
    "body{font:14px sans-serif;max-width:960px;margin:2em auto;color:#222}"
    "td,th{padding:2px 10px;text-align:left;border-bottom:1px solid #ddd}"
    "svg text{font:11px sans-serif;fill:#444}"
)


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    svg: str

    @classmethod
    def bars(cls, title: str, values: Mapping[str, float], unit: str) -> "Chart":
        """Horizontal bars, in the order given; the first BARS_MAX of them."""
        shown = list(values.items())[:BARS_MAX]
        largest = max((value for _, value in shown), default=0) or 1
        parts = []
        for row, (name, value) in enumerate(shown):
            y = row * ROW
            length = value / largest * (WIDTH - LABEL - 130)
            parts += [
                f'<text x="{LABEL - 6}" y="{y + 13}" text-anchor="end">{escape(name[-36:])}</text>',
                f'<rect x="{LABEL}" y="{y + 3}" width="{max(length, 1):.1f}" height="{ROW - 6}" ',
                f'fill="{COLORS[0]}"/><text x="{LABEL + length + 6:.1f}" y="{y + 13}">',
                f"{readable(value)} {escape(unit)}</text>",
            ]
        if len(values) > BARS_MAX:
            title = f"{title} ({BARS_MAX} of {len(values):,})"
        return cls(title, _svg(max(len(shown), 1) * ROW, parts))

    @classmethod
    def times(cls, title: str, series: Mapping[str, Sequence[tuple[int, float]]], unit: str) -> "Chart":
        """Lines of (milliseconds since 1970, value), in the order of time."""
        points = [point for line in series.values() for point in line]
        if not points:
            return cls(title, _svg(ROW, ['<text x="0" y="13">no data</text>']))
        first, last = min(at for at, _ in points), max(at for at, _ in points)
        largest = max(value for _, value in points) or 1
        across, up = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN

        def place(at: int, value: float) -> str:
            x = MARGIN + across * (at - first) / max(last - first, 1)
            return f"{x:.1f},{HEIGHT - MARGIN - up * value / largest:.1f}"

        parts = [
            f'<line x1="{MARGIN}" y1="{HEIGHT - MARGIN}" x2="{WIDTH - MARGIN}" ',
            f'y2="{HEIGHT - MARGIN}" stroke="#999"/>',
            f'<text x="{MARGIN}" y="{MARGIN - 8}">{readable(largest)} {escape(unit)}</text>',
            f'<text x="{MARGIN}" y="{HEIGHT - MARGIN + 16}">{date(first)}</text>',
            f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - MARGIN + 16}" text-anchor="end">{date(last)}</text>',
        ]
        for number, (name, line) in enumerate(series.items()):
            color = COLORS[number % len(COLORS)]
            drawn = " ".join(place(*point) for point in line)
            parts.append(f'<polyline points="{drawn}" fill="none" stroke="{color}" stroke-width="1.5"/>')
            parts.append(
                f'<text x="{MARGIN + 180 * (number % 5)}" y="{HEIGHT - 4 - 14 * (number // 5)}" '
                f'style="fill:{color}">{escape(name[-28:])}</text>'
            )
        return cls(title, _svg(HEIGHT, parts))


@dataclass(slots=True)
class Page:
    title: str
    facts: Mapping[str, Any]
    charts: list[Chart] = field(default_factory=list)
    tables: list[tuple[str, Sequence[Mapping[str, Any]]]] = field(default_factory=list)

    def table(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self.tables.append((title, rows))

    def html(self) -> str:
        facts = [{"": name.replace("_", " "), " ": value} for name, value in self.facts.items()]
        parts = [
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(self.title)}</title>',
            f"<style>{_STYLE}</style><h1>{escape(self.title)}</h1>{_rows(facts)}",
            *(f"<h2>{escape(chart.title)}</h2>{chart.svg}" for chart in self.charts),
            *(f"<h2>{escape(title)}</h2>{_rows(rows)}" for title, rows in self.tables),
            "</html>\n",
        ]
        return "\n".join(parts)


def readable(value: float) -> str:
    for limit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {suffix}" if suffix != "k" else f"{value / 1e3:.3g} k"
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def date(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError):
        return str(timestamp_ms)


def _svg(height: float, parts: Iterable[str]) -> str:
    box = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    return f"<svg {box}>{''.join(parts)}</svg>"


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{escape(str(name))}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row.values()) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else escape(str(value))
