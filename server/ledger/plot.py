"""The ledger as a picture through matplotlib, an optional package. Computes nothing.

Draws on a figure of its own: no window system is needed.
"""

from pathlib import Path
from typing import Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from server.ledger.figures import Figures, Row
from server.ledger.inputs import Inputs

__all__ = ["draw"]

_DOTS_PER_INCH = 150
_BLUE, _ORANGE, _GREEN, _GREY = "#0072b2", "#d55e00", "#009e73", "#666666"
_LIGHT_BLUE = "#9ecae1"


def draw(inputs: Inputs, figures: Figures, path: Path) -> None:
    """Write a PNG or SVG of three panels over K: rate, tokens and time of a round.

    Raises OSError when the file cannot be written.
    """
    figure = Figure(figsize=(13.0, 4.6), layout="constrained")
    rate, tokens, time = figure.subplots(1, 3)
    _rate(rate, inputs, figures)
    _tokens(tokens, figures.rows)
    _time(time, inputs, figures.rows)
    for axes in (rate, tokens, time):
        axes.set_xlabel("drafts a round, K")
        axes.xaxis.set_major_locator(FixedLocator(_ticks(inputs.ks)))
        axes.set_xlim(-0.6, inputs.ks[-1] + 0.6)
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(_title(inputs), fontsize=11)
    with rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(path, dpi=_DOTS_PER_INCH)


def _rate(axes: Axes, inputs: Inputs, figures: Figures) -> None:
    rows, best = figures.rows, figures.best
    heights = [_height(row) for row in rows]
    ks = [row.k for row in rows]
    axes.axhline(heights[0], color=_GREY, linestyle="--", linewidth=1.2, label="plain decoding")
    axes.plot(ks, heights, color=_BLUE, marker="o", label="speculative decoding")
    top = heights[ks.index(best.k)]
    axes.plot(
        [best.k],
        [top],
        color=_ORANGE,
        marker="o",
        markersize=10,
        linestyle="none",
        label=f"best: K = {best.k}" + (f", {best.speedup:.2f} times plain" if best.k else ""),
    )
    axes.set_ylim(0.0, 1.25 * max(heights))
    axes.set_title("Rate")
    axes.set_ylabel(
        "committed tokens per second" if inputs.costs.in_ms else "speed-up over plain decoding"
    )
    _legend(axes, "lower right")


def _height(row: Row) -> float:
    return row.speedup if row.tokens_per_second is None else row.tokens_per_second


def _tokens(axes: Axes, rows: tuple[Row, ...]) -> None:
    ks = [row.k for row in rows]
    accepted = [row.expected_accepted for row in rows]
    axes.bar(ks, [1.0] * len(rows), color=_BLUE, label="correction, bonus or plain token")
    axes.bar(ks, accepted, bottom=1.0, color=_LIGHT_BLUE, label="accepted drafts")
    axes.bar(
        ks[1:],  # plain decoding discards nothing, and an empty bar would still have an edge
        [row.discarded_rows for row in rows[1:]],
        bottom=[1.0 + each for each in accepted[1:]],
        color="none",
        edgecolor=_ORANGE,
        hatch="///",
        label="discarded drafts",
    )
    axes.set_title("Where the rows of a round go")
    axes.set_ylabel("target rows a round (expected)")
    _legend(axes, "upper left")
    axes.set_ylim(0.0, 1.35 * (rows[-1].k + 1))


def _time(axes: Axes, inputs: Inputs, rows: tuple[Row, ...]) -> None:
    ks = [row.k for row in rows]
    below = [0.0] * len(rows)
    for label, color, heights in (
        ("target's call (K = 0: plain round)", _BLUE, [row.verify_time for row in rows]),
        ("draft steps", _GREEN, [row.draft_time for row in rows]),
        ("other", _GREY, [row.other_time for row in rows]),
    ):
        if not any(heights):
            continue
        axes.bar(ks, heights, bottom=below, color=color, label=label)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.set_title("Time of a round")
    axes.set_ylabel("milliseconds a round" if inputs.costs.in_ms else "plain decoding steps")
    _legend(axes, "upper left")
    axes.set_ylim(0.0, 1.35 * max(below))


def _legend(axes: Axes, place: Literal["upper left", "lower right"]) -> None:
    axes.legend(loc=place, frameon=True, facecolor="white", edgecolor="none", framealpha=1.0)


def _ticks(ks: tuple[int, ...]) -> list[int]:
    """All of a few K, else every fourth."""
    return list(ks) if len(ks) <= 12 else [k for k in ks if k % 4 == 0]


def _title(inputs: Inputs) -> str:
    shown = [f"{alpha:.3g}" for alpha in inputs.profile]
    if len(set(shown)) == 1:
        return f"Speculative decoding ledger, acceptance {shown[0]}"
    listed = ", ".join(shown[:8]) + (", .." if len(shown) > 8 else "")
    return f"Speculative decoding ledger, acceptance by position {listed or 'none'}"
