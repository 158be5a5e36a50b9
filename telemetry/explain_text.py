"""Shows what was found in an acceptance log, for people and as plain data; computes nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from telemetry.explain import Finding, Report
from telemetry.explain_figures import LOSSES, Alpha, Law, Tally

__all__ = ["as_data", "as_text"]


def as_text(report: Report) -> str:
    """Tables, and the first findings with file and line."""
    lines = [*_about(report), *_findings(report)]
    for label, tally in report.parts.items():
        lines += ["", f"== {label} =="]
        lines += [*_acceptance(tally), *_laws(tally), *_losses(tally)]
    return "\n".join(_printable(line) for line in lines)


def as_data(report: Report) -> Mapping[str, object]:
    """The same as JSON types."""
    return {
        "status": report.status,
        "headers": [asdict(header) for header in report.headers],
        "runs": report.runs,
        "files": report.files,
        "records": report.records,
        "requests": report.requests,
        "dropped": report.dropped,
        "malformed": report.malformed,
        "unfinished": report.unfinished,
        "faults": [
            {"heading": heading, "kind": kind, "count": count}
            for (heading, kind), count in sorted(report.faults.items())
        ],
        "first": [asdict(finding) for finding in report.first],
        "parts": {label: _part(tally) for label, tally in report.parts.items()},
    }


def _part(tally: Tally) -> Mapping[str, object]:
    return {
        "policies": sorted(tally.policies),
        "rounds": tally.rounds,
        "plain_rounds": tally.plain,
        "mean_committed": tally.mean_committed,
        "drafted": tally.drafted,
        "kept": tally.kept,
        "alpha": [asdict(alpha) for alpha in tally.alphas()],
        "laws": [
            {
                "k": k,
                "rounds": law.rounds,
                "mean_accepted": law.mean_accepted,
                "mean_committed": law.mean_committed,
                "accepted": law.accepted,
            }
            for k, law in sorted(tally.laws.items())
        ],
        "losses": {name: asdict(loss) for name, loss in tally.losses.items()},
    }


def _about(report: Report) -> Iterator[str]:
    for header in report.headers:
        drafter = "no draft model" if header.draft is None else f"draft model {header.draft}"
        yield (
            f"{header.started}  fencepost {header.server_version}: {header.target}, {drafter}, "
            f"{header.dtype}, {header.layout}"
        )
    yield (
        f"{_count(report.records, 'record')} of {_count(report.requests, 'request')} in "
        f"{_count(report.files, 'file')}, {_count(report.runs, 'run')}"
    )
    if report.dropped:
        yield f"{_count(report.dropped, 'record')} dropped by the writer: joins there are unchecked"
    if report.unfinished:
        yield f"{_count(report.unfinished, 'last line')} not finished: left out with its round"


def _findings(report: Report) -> Iterator[str]:
    if not report.status:
        yield "every record checks"
        return
    for (heading, kind), count in sorted(report.faults.items()):
        yield f"INCONSISTENT  {heading}: {kind}, {count} x"
    if report.malformed:
        yield f"MALFORMED  {_count(report.malformed, 'line')}"
    yield from (f"  {_finding(finding)}" for finding in report.first)
    more = sum(report.faults.values()) + report.malformed - len(report.first)
    if more:
        yield f"  and {more} more"


def _finding(finding: Finding) -> str:
    place = f"{finding.file}:{finding.line}"
    return f"{place}: {finding.heading} ({finding.kind}): {finding.message}"


def _acceptance(tally: Tally) -> Iterator[str]:
    rows = [_alpha(alpha) for alpha in tally.alphas()]
    if not rows:
        yield "no round with drafts"
        return
    if len(tally.policies) > 1:
        yield f"{', '.join(sorted(tally.policies))} together; --by policy takes them apart"
    head = ("place", "reached", "accepted", "alpha", "95 % interval", "survival")
    yield from _table([head, *rows])
    yield "survival is the product of alphas; a place that was not reached counts nowhere"


def _alpha(alpha: Alpha) -> tuple[str, ...]:
    return (
        str(alpha.place),
        str(alpha.reached),
        str(alpha.accepted),
        f"{alpha.alpha:.3f}",
        f"{alpha.low:.3f} to {alpha.high:.3f}",
        f"{alpha.survival:.3f}",
    )


def _laws(tally: Tally) -> Iterator[str]:
    if tally.laws:
        yield ""
        head = ("K", "rounds", "E[A]", "E[G]", "P(A = 0), P(A = 1), ... P(A = K), before any cut")
        yield from _table([head, *(_law(k, law) for k, law in sorted(tally.laws.items()))])
        yield "the law of A holds within one K; read no survival off rounds of mixed K"
    mean = "" if tally.mean_committed is None else f", E[G] {tally.mean_committed:.3f}"
    yield f"{_count(tally.rounds, 'round')} with drafts{mean}; {tally.plain} without"


def _law(k: int, law: Law) -> tuple[str, ...]:
    shares = " ".join(f"{count / law.rounds:.3f}" for count in law.accepted)
    return (
        str(k),
        str(law.rounds),
        f"{law.mean_accepted:.3f}",
        f"{law.mean_committed:.3f}",
        shares,
    )


def _losses(tally: Tally) -> Iterator[str]:
    yield ""
    lost = tally.drafted - tally.kept
    yield f"where acceptance was lost: {lost} of {tally.drafted} drafts were discarded"
    rows = [
        (name, str(loss.drafts), str(loss.rounds), LOSSES[name])
        for name, loss in tally.losses.items()
    ]
    yield from _table([("", "drafts", "rounds", ""), *rows])


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Columns of equal width; numbers to the right, the last column and words to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if _numeric(rows[-1][column]) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _numeric(cell: str) -> bool:
    return cell.replace(".", "", 1).isdigit()


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _printable(text: str) -> str:
    """A line may hold anything; a terminal gets nothing that moves its cursor."""
    return "".join(each if each.isprintable() else "?" for each in text)
