"""Report of a soak run: a table of the run, the checks, and a plot with the verdict in its title."""

import statistics
import textwrap
from pathlib import Path

from samples import Sample
from verdict import LATENCY_FACTOR, LATENCY_SLACK_MS, WARM_UP, Slope, Verdict, level


def table(samples: list[Sample], rows: int = 20) -> str:
    """A table with about `rows` lines, each for a part of the run."""
    lines = [
        f"{'minute':>6} {'RSS':>7} {'anon':>7} {'fds':>5} {'thr':>4} {'disk':>7} {'store':>7} {'lag p99':>8} "
        f"{'p50':>7} {'p99':>8} {'max':>8} {'e2e p99':>8} {'produced/s':>10} {'read/s':>8} {'cleaned':>8}"
    ]
    step = max(len(samples) // rows, 1)
    for at in range(0, len(samples), step):
        part = samples[at : at + step]
        last = part[-1]
        begin = samples[at - 1].minutes if at else 0.0
        seconds = max((last.minutes - begin) * 60, 1)
        produced, read, cleaned = (
            sum(s.counts.get(what, 0) for s in part) / seconds for what in ("produced", "read", "cleaned")
        )
        lines.append(
            f"{last.minutes:6.1f} {last.rss_mib:7.1f} {last.anon_mib:7.1f} {last.descriptors:5d} "
            f"{last.threads:4d} {last.local_disk_mib:7.1f} {last.store_mib:7.1f} "
            f"{max(s.loop_lag_p99_ms for s in part):8.1f} "
            f"{statistics.median(s.p50_ms or 0 for s in part):7.2f} {max(s.p99_ms or 0 for s in part):8.2f} "
            f"{max(s.max_ms or 0 for s in part):8.1f} {max(s.e2e_p99_ms or 0 for s in part):8.2f} "
            f"{produced:10.0f} {read:8.0f} {cleaned / (1 << 20):5.1f}M/s"
        )
    return "\n".join(lines)


def checks(verdict: Verdict) -> str:
    lines = [f"{'check':<42} {'measured':>9} {'allowed':>9}"]
    for each in verdict.checks:
        said = "BAD" if each.bad else "ok "
        lines.append(f"{each.what:<42} {each.measured:9.2f} {each.allowed:9.2f}  {said} {each.note}")
    return "\n".join(lines)


def draw(path: Path, samples: list[Sample], verdict: Verdict) -> None:
    """Draw a PNG with panels over the same minutes.

    The warm-up is shaded. After it, values that must not grow have their slope, and values that must stay
    level have their medians in the second and last third, with the limit dotted.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    minutes = [sample.minutes for sample in samples]
    end = minutes[-1]
    begin = end * WARM_UP
    figure, panels = pyplot.subplots(6, 1, figsize=(10, 14), sharex=True, dpi=110)

    def line(panel, name, label, color):  # type: ignore[no-untyped-def]
        values = [float("nan") if getattr(s, name) is None else getattr(s, name) for s in samples]
        panel.plot(minutes, values, color=color, linewidth=1.3, label=label)

    def slope(panel, found: Slope, color):  # type: ignore[no-untyped-def]
        half = (end - begin) / 2 * found.per_minute
        ends = (found.middle - half, found.middle + half)
        panel.plot((begin, end), ends, color=color, linestyle="--", linewidth=1)

    def latency(panel, prefix, what):  # type: ignore[no-untyped-def]
        line(panel, f"{prefix}max_ms", f"{what} max", "#d9c5b2")
        line(panel, f"{prefix}p99_ms", f"{what} p99", "#bc4b51")
        line(panel, f"{prefix}p50_ms", f"{what} p50", "#5b8e7d")
        second, last = (level(samples, third, f"{prefix}p99_ms") for third in (1, 2))
        allowed = max(LATENCY_FACTOR * second, second + LATENCY_SLACK_MS)
        middle = begin + (end - begin) / 2
        panel.plot((begin, middle), (second, second), color="#bc4b51", linestyle="--", linewidth=1)
        panel.plot((middle, end), (last, last), color="#bc4b51", linestyle="--", linewidth=1)
        panel.plot((middle, end), (allowed, allowed), color="#444444", linestyle=":", linewidth=1)
        panel.set_yscale("log")
        panel.set_ylabel("milliseconds")

    line(panels[0], "rss_mib", "resident", "#2a6f97")
    slope(panels[0], verdict.slopes["rss_mib"], "#2a6f97")
    line(panels[0], "anon_mib", "anonymous", "#89c2d9")
    slope(panels[0], verdict.slopes["anon_mib"], "#89c2d9")
    panels[0].set_ylabel("memory, MiB")
    line(panels[1], "descriptors", "descriptors", "#f4a259")
    slope(panels[1], verdict.slopes["descriptors"], "#f4a259")
    line(panels[1], "threads", "threads", "#8c5e58")
    panels[1].set_ylabel("count")
    latency(panels[2], "", "produce")
    line(panels[2], "loop_lag_p99_ms", "loop lag p99 (bucket)", "#8d8d8d")
    latency(panels[3], "e2e_", "end to end")
    line(panels[4], "local_disk_mib", "on local disk", "#6c5b7b")
    line(panels[4], "store_mib", "in the object store", "#c3a6d1")
    panels[4].set_ylabel("MiB")
    _draw_load(panels[5], samples)
    for panel in panels:
        panel.axvspan(0, begin, color="#eeeeee")
        bottom, top = panel.get_ylim()  # with room above for the legend
        panel.set_ylim(bottom, top * 4) if panel.get_yscale() == "log" else panel.set_ylim(0, top * 1.2)
        panel.legend(loc="upper left", fontsize=8, frameon=False, ncols=3)
        panel.grid(alpha=0.25)
    title = f"tierlog under mixed load, after the warm-up (shaded): {verdict.headline}"
    figure.suptitle(textwrap.fill(title, 90), color="#9b1c1c" if verdict.bad else "#222222")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw_load(panel, samples: list[Sample]) -> None:  # type: ignore[no-untyped-def]
    """Thousands a second; what was compacted in MiB a second, about as many records."""
    minutes = [sample.minutes for sample in samples]
    seconds = [max((b - a) * 60, 0.1) for a, b in zip([0.0, *minutes], minutes, strict=False)]
    for what, unit, label, color in (
        ("produced", 1000, "produced, thousand records a second", "#2a6f97"),
        ("read", 1000, "read", "#5b8e7d"),
        ("cleaned", 1 << 20, "compacted, MiB a second", "#f4a259"),
    ):
        values = [s.counts.get(what, 0) / unit / passed for s, passed in zip(samples, seconds, strict=True)]
        panel.plot(minutes, values, color=color, linewidth=1.3, label=label)
    panel.set_ylabel("load")
    panel.set_xlabel("minutes")
