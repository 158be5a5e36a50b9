"""Shows a report as aligned text and as Markdown. Knows records, nothing of how they came about."""

from collections.abc import Container, Sequence
from itertools import zip_longest

from tests.prove.report import Outcome, Report

Row = Sequence[str]

_HEAD = ("oracle", "cases", "worst", "limit", "verdict", "s")
# The numbers of a row stand to the right: cases, worst and seconds.
_RIGHT = frozenset({1, 2, 5})
_FENCE = {True: "---:", False: "---"}


def render(report: Report, *, detail: bool = False) -> str:
    """The whole report: where it comes from, the table, the remarks and, with `detail`, the rows
    of every finding."""
    blocks = [
        preamble(report),
        aligned([_HEAD, *map(_cells, report.outcomes)], _RIGHT),
        summary(report),
    ]
    remarks = [f"{each.name}: {_remark(each)}" for each in report.outcomes if _remark(each)]
    if remarks:
        blocks.insert(2, "\n".join(remarks))
    if detail:
        blocks += [_details(each) for each in report.outcomes if each.finding and each.finding.rows]
    return "\n\n".join(blocks)


def markdown(report: Report) -> str:
    """The table and its remarks for a README."""
    lines = [_line(_HEAD), _line([_FENCE[column in _RIGHT] for column in range(len(_HEAD))])]
    lines += [
        _line([cell.replace("|", "\\|") for cell in _cells(each)]) for each in report.outcomes
    ]
    remarks = [f"* {each.name}: {_remark(each)}" for each in report.outcomes if _remark(each)]
    versions = report.versions
    origin = (
        f"{summary(report)} Revision {_revision(report)}, {report.date[:10]}, "
        f"Python {versions.python}, torch {versions.torch}, transformers {versions.transformers}, "
        f"numpy {report.numpy}; {report.machine.cpu}, {_threads(report)}."
    )
    parts = ["\n".join(lines), "\n".join(remarks), origin]
    return "\n\n".join(part for part in parts if part)


def preamble(report: Report) -> str:
    """Date, machine, software and scope."""
    machine, versions = report.machine, report.versions
    return (
        f"date      {report.date}, {report.scope.value} scope\n"
        f"machine   {machine.cpu}, {machine.usable_cores} of {machine.cores} cores, "
        f"{_threads(report)}\n"
        f"versions  fencepost {versions.fencepost} ({_revision(report)}), "
        f"Python {versions.python}, torch {versions.torch}, "
        f"transformers {versions.transformers}, numpy {report.numpy}"
    )


def summary(report: Report) -> str:
    """One sentence: how many hold, of how many."""
    held = sum(each.holds for each in report.outcomes)
    run = len(report.outcomes)
    seconds = sum(each.seconds for each in report.outcomes)
    left = "" if run == report.offered else f"; {report.offered - run} were not run"
    return f"{held} of {run} proofs hold, in {seconds:.0f} s{left}."


def aligned(rows: Sequence[Row], right: Container[int] = ()) -> str:
    """Columns as wide as their widest cell, two spaces apart; those in `right` end together.
    Short rows are filled up."""
    columns = list(zip_longest(*rows, fillvalue=""))
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in zip(*columns, strict=True):
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _cells(each: Outcome) -> Row:
    verdict = "HOLDS" if each.holds else "FAILS"
    oracle = f"{each.name}: {each.oracle}"
    seconds = f"{each.seconds:.1f}"
    if each.finding is None:
        return oracle, "", "", "", verdict, seconds
    found = each.finding
    return (
        oracle,
        f"{found.cases} {found.unit}",
        f"{found.worst:.2g}",
        found.limit,
        verdict,
        seconds,
    )


def _remark(each: Outcome) -> str:
    return each.error or "" if each.finding is None else each.finding.note


def _details(each: Outcome) -> str:
    rows = each.finding.rows if each.finding else ()
    return f"== {each.name}\n{aligned(rows)}"


def _line(cells: Row) -> str:
    return f"| {' | '.join(cells)} |"


def _threads(report: Report) -> str:
    return "1 thread" if report.threads == 1 else f"{report.threads} threads"


def _revision(report: Report) -> str:
    versions = report.versions
    changed = f" and {versions.changed} changed files" if versions.changed else ""
    return f"{versions.revision or 'unknown'}{changed}"
