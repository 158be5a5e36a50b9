"""Prints points as one table, the worst ratios last. Knows figures, nothing of how they came."""

from collections.abc import Sequence
from statistics import median

from tests.bench.simulation.measure import Point

FLOOR = 0.97
_HEAD = (
    *("scenario", "at once", "tok/s", "K", "best", "/best", "/plain", "/oracle"),
    *("flips/s", "changes/s", "probing", "idle draft"),
)


def render(points: Sequence[Point], others: Sequence[Point] = ()) -> str:
    """One line a point, then the worst ones in words. `others` are runs with other seeds of those
    below the bar."""
    rows = [_HEAD, *map(_row, points)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(row, widths) for row in rows]
    return "\n".join([*lines, "", *_worst(points), *_again(points, others)])


def _row(point: Point) -> tuple[str, ...]:
    auto = next(each for each in point.arms if each.name == "auto")
    return (
        point.scenario,
        str(point.concurrency),
        f"{point.score('auto'):.1f}",
        f"{auto.mean_k:.2f}",
        point.best_fixed,
        f"{point.over(point.best_fixed):.3f}",
        f"{point.over('k=0'):.3f}",
        f"{point.over('oracle'):.3f}",
        f"{auto.flips / auto.seconds:.2f}",
        f"{auto.changes / auto.seconds:.2f}",
        f"{100 * auto.probing:.2f} %",
        f"{100 * auto.idle_draft:.2f} %",
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(row, widths, strict=True)
    cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
    return "  ".join(cells).rstrip()


def _worst(points: Sequence[Point]) -> list[str]:
    lines = []
    for words, name in (("THE BEST FIXED K", None), ("PLAIN DECODING", "k=0")):
        ratios = sorted(
            (each.over(name or each.best_fixed), each.scenario, each.concurrency) for each in points
        )
        below = sum(ratio < FLOOR for ratio, _, _ in ratios)
        lines.append(f"AGAINST {words}: {below} OF {len(ratios)} POINTS BELOW {FLOOR}, WORST")
        lines += [f"  {ratio:.3f}  {name} at {count}" for ratio, name, count in ratios[:8]]
    return lines


def _again(points: Sequence[Point], others: Sequence[Point]) -> list[str]:
    """Points below the bar, over all their runs."""
    lines, still = [], 0
    for point in points:
        if point.worst >= FLOOR:
            continue
        place = (point.scenario, point.concurrency)
        runs = [point, *(each for each in others if (each.scenario, each.concurrency) == place)]
        ratios = [each.worst for each in runs]
        still += median(ratios) < FLOOR
        shown = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        lines.append(f"  {shown}: median {median(ratios):.3f}  {place[0]} at {place[1]}")
    return [f"WITH TWO MORE SEEDS: {still} OF {len(points)} POINTS BELOW {FLOOR}", *lines]
