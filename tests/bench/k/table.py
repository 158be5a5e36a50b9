"""Prints a report on dynamic K as plain aligned text. Knows records, not how they were measured."""

from collections.abc import Iterator

from tests.bench.figures import Spread
from tests.bench.k.figures import Idle, Level, Ramp, RampArm, Report
from tests.bench.table import Row, aligned, origin, span


def render(report: Report) -> str:
    """The whole report."""
    return "\n\n".join(_blocks(report))


def _blocks(report: Report) -> Iterator[str]:
    yield _preamble(report)
    rounds = report.settings.rounds
    yield f"Committed tokens/s (median of {rounds} rounds, prefill included)\n" + _rates(
        report.levels
    )
    yield "Ratios inside a round (median, min-max)\n" + _ratios(report.levels)
    if report.ramp is not None:
        yield _ramp_heading(report.ramp) + _ramp(report.ramp)
        yield "The same, over the whole trace\n" + _traces(report.ramp)
    yield "Draft part of rounds with every K = 0\n" + _idle(report)


def _preamble(report: Report) -> str:
    settings, models = report.settings, report.models
    target, draft = (parameters / 1e6 for parameters in models.parameters)
    return (
        f"{origin(report.date, report.machine, report.versions, settings.threads)}\n"
        f"settings  temperature {settings.temperature:g}, {settings.verifier} verifier, "
        f"{settings.layout},\n          "
        f"{settings.prompt_tokens} + {settings.tokens} tokens a request, seed {settings.seed}\n"
        f"          a run ends with {settings.per_client} tokens for each request at once, "
        f"at least {settings.least};\n"
        f"          a request that ends is replaced before the next round;\n"
        f"          all ways run at once, in turns of {settings.turn:g} s\n"
        f"pair      {models.name}: {target:.1f} M and {draft:.1f} M parameters, {models.dtype}; "
        f"profile {report.profile_took:.1f} s; auto up to K {settings.k_max}"
    )


def _rates(levels: tuple[Level, ...]) -> str:
    rows: list[Row] = [("at once", *(arm.name for arm in levels[0].arms), "mean K of auto")]
    rows += [
        (
            str(level.concurrency),
            *(f"{arm.rate.median:.1f}" for arm in level.arms),
            _number(level.arms[-1].mean_k),
        )
        for level in levels
    ]
    return aligned(rows)


def _ratios(levels: tuple[Level, ...]) -> str:
    held_out = "/best of other rounds"
    rows: list[Row] = [
        ("at once", "best K", "auto/best", "", held_out, "", "auto/K 0", "", "K 0/no draft", "")
    ]
    rows += [
        (
            str(level.concurrency),
            str(level.best),
            *_ratio(level.over_best),
            *_ratio(level.over_best_held_out),
            *_ratio(level.over_plain),
            *_ratio(level.plain_over_no_draft),
        )
        for level in levels
    ]
    return aligned(rows)


def _ramp_heading(ramp: Ramp) -> str:
    """What the table of a ramp shows."""
    return f"Ramp, {ramp.window} tokens a step, tokens/s by step\n"


def _ramp(ramp: Ramp) -> str:
    rows: list[Row] = [("at once", *(arm.name for arm in ramp.arms), "mean K of auto")]
    for number, concurrency in enumerate(ramp.trace):
        steps = [arm.steps[number] for arm in ramp.arms]
        rates = [f"{step.rate.median:.1f}" for step in steps]
        rows.append((str(concurrency), *rates, _number(steps[-1].mean_k)))
    return aligned(rows)


def _traces(ramp: Ramp) -> str:
    rows: list[Row] = [("", "tokens/s", "min-max", "switches/s", "without probes")]
    rows += [_trace(arm) for arm in ramp.arms]
    ratios: list[Row] = [
        (f"auto / K {ramp.best}, its best", *_ratio(ramp.over_best)),
        ("auto / K 0", *_ratio(ramp.over_plain)),
    ]
    return f"{aligned(rows)}\n{aligned(ratios)}"


def _trace(arm: RampArm) -> Row:
    turns = (f"{arm.switches:.2f}", f"{arm.lasting_switches:.2f}") if arm.k is None else ("", "")
    return (arm.name, f"{arm.rate.median:.1f}", span(arm.rate), *turns)


def _idle(report: Report) -> str:
    rows: list[Row] = [("at once", "way", "rounds", "seconds", "ms a round", "draft rows")]
    for level in report.levels:
        shown = [arm for arm in level.arms if arm.k in {0, None}]
        rows += [_idle_row(str(level.concurrency), arm.name, arm.idle) for arm in shown]
    if report.ramp is not None:
        shown_too = [arm for arm in report.ramp.arms if arm.k in {0, None}]
        rows += [_idle_row("ramp", arm.name, arm.idle) for arm in shown_too]
    return aligned(rows)


def _idle_row(at_once: str, name: str, idle: Idle) -> Row:
    each = 1e3 * idle.draft_seconds / idle.rounds if idle.rounds else None
    return (
        at_once,
        name,
        str(idle.rounds),
        f"{idle.draft_seconds:.3f}",
        _number(each),
        str(idle.draft_rows),
    )


def _ratio(spread: Spread | None) -> tuple[str, str]:
    return ("", "") if spread is None else (f"{spread.median:.3f}", span(spread))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
