"""Prints a report as plain aligned text. Knows records, not how they were measured."""

from collections.abc import Iterator

from tests.bench.table import Row, aligned
from tests.gpu.figures import Cell, Limits, PairFigures, Report


def render(report: Report) -> str:
    """The whole report."""
    return "\n\n".join(_blocks(report))


def _blocks(report: Report) -> Iterator[str]:
    yield _preamble(report)
    if report.pair is not None:
        yield _pair(report.pair)
    if report.contracts is not None:
        yield f"contracts {report.contracts.summary}"
    for runtime in dict.fromkeys(cell.runtime for cell in report.cells):
        cells = tuple(cell for cell in report.cells if cell.runtime == runtime)
        recorded = any(cell.eager_ms is not None for cell in cells)
        calls = "replayed from recordings" if recorded else "launched from the host"
        yield (
            f"Through the engine, layers by {runtime}, model calls {calls}, temperature 1\n"
            + _cells(cells)
        )
    if report.stock:
        yield "Stock vLLM, the same prompts and lengths\n" + _stock(report)
    if report.skipped or report.failed:
        yield "\n".join((*report.skipped, *report.failed))


def _preamble(report: Report) -> str:
    device, versions = report.device, report.versions
    rates = [f"{_limits(device.limits)} ({device.limits.source})"]
    if device.measured != device.limits:
        rates.append(f"measured here {_limits(device.measured)}")
    return (
        f"{report.date}  {device.name}  {report.machine.cpu}\n"
        f"python {versions.python}, torch {versions.torch}, transformers {versions.transformers}, "
        f"revision {versions.revision or 'unknown'}; {report.seconds:.0f} s\n"
        f"limits    {'; '.join(rates)}"
    )


def _limits(limits: Limits) -> str:
    return f"{limits.bandwidth / 1e12:.3g} TB/s, {limits.compute / 1e12:.3g} TFLOP/s"


def _pair(pair: PairFigures) -> str:
    return (
        f"pair      {pair.target_parameters / 1e9:.3g} B and {pair.draft_parameters / 1e9:.3g} B "
        f"random weights, {pair.dtype}, built in {pair.seconds:.1f} s\n"
        f"          acceptance {pair.overlap:.3f} by sum min(p, q) on random ids, "
        f"entropy {pair.entropy:.2f} nats, factor {pair.factor:.3g}\n"
        f"          packed probe logits off the unmodified model's by {pair.deviation:.2g}"
    )


def _cells(cells: tuple[Cell, ...]) -> str:
    rows: list[Row] = [
        (
            *("at once", "K", "tokens/s", "of K 0", "mean K", "accepted", "round ms"),
            *("verify rows", "ms", "eager ms", "of memory", "of compute", "host share"),
        )
    ]
    plain = {cell.requests: cell.rate for cell in cells if cell.k == 0}
    rows += [_cell(cell, plain.get(cell.requests)) for cell in cells]
    return aligned(rows)


def _cell(cell: Cell, plain: float | None) -> Row:
    return (
        str(cell.requests),
        "auto" if cell.k is None else str(cell.k),
        f"{cell.rate:.1f}",
        "" if plain is None else f"{cell.rate / plain:.2f}",
        f"{cell.mean_k:.2f}",
        _percent(cell.acceptance),
        f"{cell.round_ms:.2f}",
        str(cell.verify.rows),
        f"{cell.verify.milliseconds:.2f}",
        "" if cell.eager_ms is None else f"{cell.eager_ms:.2f}",
        _percent(cell.verify.memory_share),
        _percent(cell.verify.compute_share),
        _percent(cell.host_share),
    )


def _stock(report: Report) -> str:
    runtimes = list(dict.fromkeys(cell.runtime for cell in report.cells))
    heads = [f"ours, {runtime}, {way}" for runtime in runtimes for way in ("this K", "auto")]
    rows: list[Row] = [("at once", "K", "tokens/s", *heads)]
    ours = {(cell.runtime, cell.requests, cell.k): cell.rate for cell in report.cells}
    for cell in report.stock:
        rates = [ours.get((each, cell.requests, k)) for each in runtimes for k in (cell.k, None)]
        over = ["" if rate is None else f"{rate / cell.rate:.2f}" for rate in rates]
        rows.append((str(cell.requests), str(cell.k), f"{cell.rate:.1f}", *over))
    return aligned(rows)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
