"""Step 6: draws the local and remote offsets of each partition over time."""

from pathlib import Path

from tiers import PartitionTiers, Sample

REMOTE, BOTH, LOCAL = "#2a6f97", "#89c2d9", "#f4a259"
INK, FAINT = "#1d2b36", "#d7dde2"
NEAR = 0.12
"""Distance between two labels, as a fraction of the width, below which they would touch."""


def draw(path: Path, topic: str, samples: list[Sample], moments: list[tuple[float, str]]) -> None:
    """Write a PNG with one panel per partition: offsets over time, coloured by tier."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    samples = sorted(samples, key=lambda sample: sample.seconds)
    end = samples[-1].seconds * 1.04  # keep the last change visible
    samples.append(Sample(end, samples[-1].partitions))
    partitions = sorted({partition for sample in samples for partition in sample.partitions})
    figure, panels = pyplot.subplots(
        len(partitions),
        1,
        figsize=(11, 1.55 * len(partitions) + 1.6),
        sharex=True,
        sharey=True,
        squeeze=False,
        dpi=160,
    )
    for panel, partition in zip(panels[:, 0], partitions, strict=True):
        _panel(
            panel,
            partition,
            [
                (sample.seconds, sample.partitions[partition])
                for sample in samples
                if partition in sample.partitions
            ],
        )
        for seconds, _ in moments:
            panel.axvline(seconds, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    _label_moments(panels[0, 0], moments, end)
    panels[-1, 0].set_xlabel("seconds since the topic was created", color=INK)
    figure.suptitle(
        f"Local and remote offsets of topic “{topic}”",
        x=0.075,
        y=0.985,
        ha="left",
        fontsize=15,
        color=INK,
        weight="bold",
    )
    handles = [
        Patch(color=LOCAL, label="local disk only"),
        Patch(color=BOTH, label="local disk and object store"),
        Patch(color=REMOTE, label="object store only"),
    ]
    figure.legend(
        handles=handles,
        loc="upper right",
        ncols=3,
        frameon=False,
        bbox_to_anchor=(0.985, 0.99),
        labelcolor=INK,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.99))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


def _panel(panel: object, partition: int, points: list[tuple[float, PartitionTiers]]) -> None:
    seconds = [point for point, _ in points]
    tiers = [tier for _, tier in points]
    start = [tier.log_start for tier in tiers]
    local = [max(tier.local_start, tier.log_start) for tier in tiers]
    remote = [max(tier.remote_end, tier.log_start) for tier in tiers]
    end = [tier.log_end for tier in tiers]
    only_remote = [min(pair) for pair in zip(local, remote, strict=True)]
    both = [max(pair) for pair in zip(local, remote, strict=True)]
    fill = panel.fill_between  # type: ignore[attr-defined]
    fill(seconds, start, only_remote, step="post", color=REMOTE, linewidth=0)
    fill(seconds, only_remote, both, step="post", color=BOTH, linewidth=0)
    fill(seconds, both, end, step="post", color=LOCAL, linewidth=0)
    _style(panel, partition)


def _style(panel: object, partition: int) -> None:
    from matplotlib.axes import Axes
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if not isinstance(panel, Axes):
        raise TypeError(panel)
    panel.set_ylabel(f"partition {partition}", color=INK)
    panel.yaxis.set_major_locator(MaxNLocator(3))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:.0f}k" if value else "0"))
    panel.grid(axis="y", color=FAINT, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.tick_params(colors=INK, length=0)
    panel.margins(x=0)
    panel.set_ylim(bottom=0)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color(FAINT)


def _label_moments(panel: object, moments: list[tuple[float, str]], end: float) -> None:
    """Label moments above the first panel; a label that would touch the previous one moves up a line."""
    level, before = 0, -end
    for seconds, label in moments:
        level = (level + 1) % 2 if seconds - before < end * NEAR else 0
        before = seconds
        panel.annotate(  # type: ignore[attr-defined]
            label,
            (seconds, 1.02 + 0.1 * level),
            xycoords=("data", "axes fraction"),
            fontsize=8,
            color=INK,
            ha="center",
            va="bottom",
        )
