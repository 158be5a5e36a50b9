"""The ledger as text for a terminal: tables and a bar chart. Computes nothing.

The chart is a few lines of plain ASCII of its own: a library for one row of bars would be one more
thing to install, and ASCII comes out right in every terminal, log and pager.
"""

from collections.abc import Iterable, Iterator, Sequence

from server.ledger.figures import SHOWN_ALPHAS, Figures, Row
from server.ledger.inputs import Inputs

__all__ = ["lines"]

_CHART_WIDTH = 56


def lines(inputs: Inputs, figures: Figures, *, law: bool, sensitivity: bool) -> Iterator[str]:
    """The report, line by line; `law` and `sensitivity` add their tables."""
    yield from _heading(inputs)
    yield ""
    yield from _table(_columns(inputs), [_cells(row, inputs, figures) for row in figures.rows])
    yield ""
    yield from _verdict(inputs, figures)
    yield ""
    yield from _chart(figures)
    if law:
        yield from _law(figures)
    if sensitivity:
        yield from _sensitivity(inputs, figures)
    if inputs.sizes is not None:
        yield from _memory(figures)


# ---- what was asked ------------------------------------------------------------------------------


def _heading(inputs: Inputs) -> Iterator[str]:
    reading, costs, unit = inputs.reading, inputs.costs, _unit(inputs)
    if reading is not None:
        counts = ", ".join(map(str, reading.reached))
        yield (
            f"measured over {reading.emitting} rounds that emitted, of {reading.rounds}, "
            f"mean K {reading.mean_k:.2f};"
        )
        yield f"  draft positions tested {counts} times"
        yield "  costs not given by flags: time of all rounds over those that emitted, at any K;"
        yield "  prefill makes them err high and tokens/s low; in the retained layout requests that"
        yield "  append while others emit make them err low and tokens/s high"
    yield f"acceptance by position: {_acceptances(inputs.profile)}"
    called = [time for k, time in costs.verify.items() if k in inputs.ks and k]
    verify = f"{min(called, default=costs.plain):.4g}"
    if called and max(called) > min(called):
        verify += f" .. {max(called):.4g}"
    yield (
        f"costs in {unit}: draft step {costs.draft:.4g}, target's call {verify}, "
        f"other {costs.other:.4g}, plain round {costs.plain:.4g}"
    )


def _acceptances(profile: Sequence[float]) -> str:
    if len(profile) > 1 and len(set(profile)) == 1:
        return f"{profile[0]:.4g} at each"
    return ", ".join(f"{alpha:.4g}" for alpha in profile) or "none"


def _unit(inputs: Inputs) -> str:
    return "ms" if inputs.costs.in_ms else "plain steps"


# ---- the table -----------------------------------------------------------------------------------


def _columns(inputs: Inputs) -> list[str]:
    timed = ["round ms", "tokens/s"] if inputs.costs.in_ms else ["round/plain"]
    return ["K", "s_K", "E[A]", "E[G]", "discarded", *timed, "speed-up", "break-even", ""]


def _cells(row: Row, inputs: Inputs, figures: Figures) -> list[str]:
    timed = [f"{row.round_time:.3f}"]
    if inputs.costs.in_ms:
        timed.append(f"{row.tokens_per_second:.1f}")
    return [
        str(row.k),
        f"{row.survival:.4f}",
        f"{row.expected_accepted:.4f}",
        f"{row.expected_committed:.4f}",
        f"{row.discarded_rows:.4f}",
        *timed,
        f"{row.speedup:.3f}x",
        "" if not row.k else "never" if row.break_even is None else f"{row.break_even:.3f}",
        _note(row, figures),
    ]


def _note(row: Row, figures: Figures) -> str:
    if row.k == figures.best.k:
        return "<- best" if row.k else "<- best: plain decoding"
    if row.k == 0:
        return "plain decoding"
    return "slower than plain" if row.speedup < 1.0 else ""


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for cells in (head, *rows):
        # The last column holds words; the others numbers.
        padded = [cell.rjust(width) for cell, width in zip(cells[:-1], widths, strict=False)]
        yield "  ".join([*padded, cells[-1]]).rstrip()


def _verdict(inputs: Inputs, figures: Figures) -> Iterator[str]:
    best = figures.best
    row = next(row for row in figures.rows if row.k == best.k)
    rate = "" if row.tokens_per_second is None else f", {row.tokens_per_second:.1f} tokens/s"
    worth = f"{best.speedup:.3f} times plain decoding" if best.k else "plain decoding"
    yield f"best: K = {best.k}, {worth}{rate}"
    longer = next((row for row in figures.rows if row.k > best.k), None)
    if longer is not None and longer.step is not None:
        step = longer.step
        yield (
            f"K = {longer.k} would add {step.tokens:.3f} tokens and {step.time:.3g} "
            f"{_unit(inputs)} a round; at K = {best.k} that time commits "
            f"{step.tokens - step.gain:.3f} tokens"
        )
    elif best.k:
        yield f"K = {best.k} is the last one looked at: longer drafts may be better still"
    yield "break-even: the acceptance, equal at all positions, from which K is no slower than plain"


# ---- the chart -----------------------------------------------------------------------------------


def _chart(figures: Figures) -> Iterator[str]:
    """Bars of the speed-up; `|` stands where plain decoding is."""
    longest = max(row.speedup for row in figures.rows)
    plain = max(1, round(_CHART_WIDTH / longest))
    yield "speed-up over plain decoding (|)"
    for row in figures.rows:
        bar = "#" * round(_CHART_WIDTH * row.speedup / longest)
        cells = bar.ljust(_CHART_WIDTH)
        marked = f"{cells[: plain - 1]}|{cells[plain:]}"
        star = "  <- best" if row.k == figures.best.k else ""
        yield f"K {row.k:>2}  {marked}  {row.speedup:.2f}x{star}"


# ---- on request ----------------------------------------------------------------------------------


def _law(figures: Figures) -> Iterator[str]:
    yield ""
    yield "law of G, the tokens that a round commits: P(G = g)"
    longest = figures.rows[-1].k + 1
    head = ["K", *(f"g={g}" for g in range(1, longest + 1)), ""]
    yield from _table(
        head,
        [
            [str(row.k), *(f"{share:.4f}" for share in row.law), *[""] * (longest - row.k)]
            for row in figures.rows
        ],
    )


def _sensitivity(inputs: Inputs, figures: Figures) -> Iterator[str]:
    yield ""
    yield "speed-up at other acceptances, equal at all positions (* best K)"
    head = ["acceptance", *(f"K={k}" for k in inputs.ks), ""]
    yield from _table(
        head,
        [
            [f"{alpha:.2f}", *_starred(speedups), ""]
            for alpha, speedups in zip(SHOWN_ALPHAS, figures.sensitivity, strict=True)
        ],
    )
    yield ""
    yield f"tokens a round at K = {inputs.ks[-1]} for 0.1 more acceptance at one position"
    gains = (f"{place}: +{0.1 * worth:.3f}" for place, worth in enumerate(figures.leverage, 1))
    yield "  ".join(gains)


def _starred(speedups: Sequence[float]) -> Iterator[str]:
    best = speedups.index(max(speedups))
    for place, value in enumerate(speedups):
        yield f"{value:.3f}{'*' if place == best else ' '}"


def _memory(figures: Figures) -> Iterator[str]:
    yield ""
    yield "bytes a round and request, expected"
    head = ["K", "branch K/V", "p and q rows", "discarded K/V", "committed K/V", "temp/committed"]
    yield from _table([*head, ""], [[*_sizes_of(row), ""] for row in figures.rows])


def _sizes_of(row: Row) -> Iterable[str]:
    if row.bytes is None:
        return
    yield str(row.k)
    sizes = row.bytes
    for size in (sizes.branch_kv, sizes.probabilities, sizes.discarded_kv, sizes.committed_kv):
        yield _bytes(size)
    yield f"{sizes.temporary / sizes.committed_kv:.2f}"


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024.0:
            return f"{size:.4g} {unit}"
        size /= 1024.0
    return f"{size:.4g} GiB"
