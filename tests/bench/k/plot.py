"""The report on dynamic K as a picture: rates over concurrency, and what auto chose. Computes
nothing, and draws on a figure of its own: no window system is needed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from tests.bench.k.figures import Arm, Level, Report

_DOTS_PER_INCH = 150
_AUTO, _PLAIN = "#d55e00", "#333333"
_FIXED = ("#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#084594")
"""Light to dark: few drafts to many."""


def draw(report: Report, path: Path) -> None:
    """Write a PNG of two panels over concurrency. Raises OSError when it cannot be written."""
    figure = Figure(figsize=(8.0, 7.0), layout="constrained")
    rates, lengths = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    _rates(rates, report)
    _lengths(lengths, report.levels)
    ticks = [level.concurrency for level in report.levels]
    for axes in (rates, lengths):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    lengths.set_xlabel("requests at once")
    figure.suptitle(_title(report), fontsize=11)
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _rates(axes: Axes, report: Report) -> None:
    at_once = [level.concurrency for level in report.levels]
    for number, name in enumerate(arm.name for arm in report.levels[0].arms):
        arms = [level.arms[number] for level in report.levels]
        style = _style(report, arms[0])
        if style is None:
            continue
        rates = [arm.rate for arm in arms]
        axes.plot(at_once, [rate.median for rate in rates], label=name, marker="o", **style)
        if arms[0].k is None:
            lowest, highest = [rate.lowest for rate in rates], [rate.highest for rate in rates]
            axes.fill_between(at_once, lowest, highest, color=_AUTO, alpha=0.15, linewidth=0.0)
    axes.set_ylabel("committed tokens per second")
    axes.set_ylim(bottom=0.0)
    axes.legend(loc="lower right", frameon=False, ncols=2)


def _style(report: Report, arm: Arm) -> dict[str, Any] | None:
    """How the line of one way looks; None for the one without a draft model, which K = 0 hides."""
    if arm.k is None:
        return {"color": _AUTO, "linewidth": 3.0, "zorder": 5}
    if not arm.k:
        plain = {"color": _PLAIN, "linewidth": 1.8, "linestyle": "--", "zorder": 4}
        return plain if arm.name == "K 0" else None
    ks = report.settings.ks
    shade = _FIXED[ks.index(arm.k) * len(_FIXED) // len(ks)]
    return {"color": shade, "linewidth": 1.0, "markersize": 3.0}


def _lengths(axes: Axes, levels: Sequence[Level]) -> None:
    chosen = [(level.concurrency, level.arms[-1].mean_k) for level in levels]
    known = [(at_once, k) for at_once, k in chosen if k is not None]
    axes.plot(*zip(*known, strict=True), color=_AUTO, linewidth=3.0, marker="o")
    axes.set_ylabel("mean K of auto")
    axes.set_ylim(bottom=-0.2)


def _title(report: Report) -> str:
    settings, models = report.settings, report.models
    sizes = " and ".join(f"{parameters / 1e6:.1f} M" for parameters in models.parameters)
    threads = "1 thread" if settings.threads == 1 else f"{settings.threads} threads"
    return (
        f"Fixed and dynamic K: {models.name} pair, {sizes} parameters\n"
        f"{report.machine.cpu}, {threads}, median of {settings.rounds}, min-max of auto shaded"
    )
