"""Prints a report as plain aligned text. Knows records, nothing of how they were measured."""

from collections.abc import Iterable, Iterator, Sequence

from tests.bench.figures import (
    Arm,
    Ledger,
    Level,
    Machine,
    PairFigures,
    Peer,
    Prediction,
    Report,
    Spread,
    Versions,
)

Row = Sequence[str]


def render(report: Report) -> str:
    """The whole report."""
    blocks = [_preamble(report)]
    blocks += [block for pair in report.pairs for block in _pair(pair)]
    return "\n\n".join(blocks)


def aligned(rows: Sequence[Row]) -> str:
    """Columns as wide as their widest cell: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def origin(date: str, machine: Machine, versions: Versions, threads: int) -> str:
    """When figures were taken, on what, and with which software."""
    changed = f" and {versions.changed} changed files" if versions.changed else ""
    return (
        f"date      {date}\n"
        f"machine   {machine.cpu}, {machine.usable_cores} of {machine.cores} cores, "
        f"{machine.memory_gib:.1f} GiB, {' '.join(machine.flags)}\n"
        f"          load average {machine.load:.2f} when this began, "
        f"{threads} threads an operation\n"
        f"versions  fencepost {versions.fencepost} ({versions.revision}{changed}), "
        f"Python {versions.python}, torch {versions.torch}, transformers {versions.transformers}"
    )


def _preamble(report: Report) -> str:
    settings = report.settings
    return (
        f"{origin(report.date, report.machine, report.versions, settings.threads)}\n"
        f"settings  K {settings.k}, temperature {settings.temperature:g}, "
        f"{settings.verifier} verifier, {settings.rounds} rounds, "
        f"{settings.prompt_tokens} + {settings.tokens} tokens, seed {settings.seed}"
    )


def _pair(pair: PairFigures) -> Iterator[str]:
    yield _heading(pair)
    yield "Committed tokens/s (median of rounds, prefill included)\n" + _rates(pair.levels)
    yield "Rounds without prefill\n" + _rounds(pair.levels)
    yield "Acceptance by position, drafts on\n" + _acceptance(pair.levels)
    yield "One forward with logits, alone\n" + _costs(pair.ledger)
    if pair.prediction is not None:
        yield "Ledger at concurrency 1\n" + _prediction(pair.prediction)
    if pair.peer is not None:
        yield "Beside transformers, concurrency 1, whole calls, tokens/s\n" + _peer(pair.peer)


def _heading(pair: PairFigures) -> str:
    target, draft = (parameters / 1e6 for parameters in pair.parameters)
    startup, memory = pair.startup, pair.memory
    whole = startup.imports + startup.load + startup.first_token
    return (
        f"== {pair.name}: {target:.1f} M and {draft:.1f} M parameters, "
        f"{pair.vocabulary} ids, {pair.target_dtype}\n"
        f"start-up  {whole:.1f} s to the first token: imports {startup.imports:.1f}, "
        f"load {startup.load:.1f}, first token {startup.first_token:.2f}\n"
        f"memory    weights {memory.weights:.0f} MiB, K/V {memory.kv:.0f} MiB, "
        f"peak resident {memory.peak_rss:.0f} MiB"
    )


def _rates(levels: Iterable[Level]) -> str:
    rows: list[Row] = [("at once", "on", "off", "on/off", "min-max", "lag p99 ms on", "off")]
    rows += [
        (
            str(level.concurrency),
            f"{level.on.rate.median:.1f}",
            f"{level.off.rate.median:.1f}",
            f"{level.speedup.median:.2f}",
            span(level.speedup),
            f"{level.on.lag_p99_ms:.2f}",
            f"{level.off.lag_p99_ms:.2f}",
        )
        for level in levels
    ]
    return aligned(rows)


def _rounds(levels: Iterable[Level]) -> str:
    rows: list[Row] = [
        (
            "at once, K",
            "E[G]",
            "rows/call",
            "host %",
            "round ms",
            "forward",
            "schedule",
            "draft",
            "verify",
            "decide",
            "commit",
        )
    ]
    rows += [_round(level.concurrency, arm) for level in levels for arm in (level.on, level.off)]
    return aligned(rows)


def _round(concurrency: int, arm: Arm) -> Row:
    parts = arm.parts_ms
    times = (
        parts.round,
        parts.forward,
        parts.schedule,
        parts.draft,
        parts.verify,
        parts.decide,
        parts.commit,
    )
    gained = arm.committed_per_round
    return (
        f"{concurrency}, {arm.k}",
        "" if gained is None else f"{gained:.2f}",
        f"{arm.rows_per_call:.1f}",
        f"{100 * arm.host_share:.1f}",
        *(f"{value:.2f}" for value in times),
    )


def _acceptance(levels: Iterable[Level]) -> str:
    rows: list[Row] = [("at once, position", "reached", "accepted", "acceptance", "by mass")]
    rows += [
        (
            f"{level.concurrency}, {number}",
            str(place.reached),
            str(place.accepted),
            f"{place.acceptance:.3f}",
            f"{place.mass_acceptance:.3f}",
        )
        for level in levels
        for number, place in enumerate(level.on.positions, 1)
    ]
    return aligned(rows)


def _costs(ledger: Ledger) -> str:
    rows: list[Row] = [("model", "rows", "ms")]
    rows += [(cost.model, str(cost.rows), f"{cost.milliseconds:.2f}") for cost in ledger.costs]
    return (
        f"{aligned(rows)}\n"
        f"c {ledger.c:.4f} (draft row / target row, {ledger.context} tokens cached), "
        f"verify(K+1)/verify(1) {ledger.verify_ratio:.3f}"
    )


def _prediction(prediction: Prediction) -> str:
    rows: list[Row] = [
        ("", "speed-up", "achieved/it"),
        (
            f"E[G] {prediction.expected:.3f} / (1 + K c)",
            f"{prediction.flat:.3f}",
            f"{prediction.achieved_over_flat:.3f}",
        ),
        (
            "E[G] / (verify(K+1)/verify(1) + K c)",
            f"{prediction.with_verify:.3f}",
            f"{prediction.achieved_over_with_verify:.3f}",
        ),
        ("achieved, decoding alone", f"{prediction.achieved:.3f}", ""),
    ]
    return aligned(rows)


def _peer(peer: Peer) -> str:
    rows: list[Row] = [("", "median", "min-max")]
    rows += [
        ("this engine, drafts on", f"{peer.ours.median:.1f}", span(peer.ours)),
        ("this engine, drafts off", f"{peer.ours_off.median:.1f}", span(peer.ours_off)),
    ]
    rows += [
        (f"transformers {arm.mode}, {arm.dtype}", f"{arm.rate.median:.1f}", span(arm.rate))
        for arm in peer.arms
    ]
    rows.append(
        (
            f"ours / assisted in {peer.best_assisted}, its better",
            f"{peer.over_assisted.median:.2f}",
            span(peer.over_assisted),
        )
    )
    return aligned(rows)


def span(spread: Spread) -> str:
    """Lowest to highest."""
    return f"{spread.lowest:.2f}-{spread.highest:.2f}"
